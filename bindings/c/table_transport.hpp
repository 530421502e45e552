// SPDX-License-Identifier: Apache-2.0
// A transport that somebody else wrote, as a table of C functions.
#pragma once

#include <atomic>
#include <string>

#include "gradsieve/gradsieve.h"
#include "gradsieve/transport.hpp"

namespace gradsieve::c {

class TableTransport final : public Transport {
 public:
  /// Throws Error(invalid_argument) for a table that lacks a function or a sensible rank.
  explicit TableTransport(gsvTransportTable const& table);
  ~TableTransport() override;
  TableTransport(TableTransport const&) = delete;
  TableTransport& operator=(TableTransport const&) = delete;

  [[nodiscard]] int rank() const noexcept override { return table_.rank; }
  [[nodiscard]] int world_size() const noexcept override { return table_.world_size; }
  [[nodiscard]] TransportTraits traits() const noexcept override;

  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override;
  Status receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                 Request& request) noexcept override;
  Status wait(Request& request, Deadline deadline) noexcept override;
  void abort() noexcept override;
  [[nodiscard]] TransportCounters counters() const noexcept override;
  Status dense_all_reduce(TensorView data) noexcept override;

 private:
  [[nodiscard]] Status check(int peer) const noexcept;

  gsvTransportTable table_;
  std::string name_;
  int process_id_;
  std::atomic<bool> aborted_{false};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> messages_sent_{0};
};

}  // namespace gradsieve::c
