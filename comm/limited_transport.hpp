// SPDX-License-Identifier: Apache-2.0
// A slow network around any transport.
#pragma once

#include <condition_variable>
#include <mutex>

#include "gradsieve/transport.hpp"

namespace gradsieve {

/// Hands everything to the inner transport at once, and lets a send be done no earlier than the
/// modelled link could have carried it. send() only books the link; wait() sleeps. A receiver may
/// thus hold the bytes early; an exchange still takes its time, because it waits for its own sends.
/// A message to oneself takes no link.
class LimitedTransport final : public Transport {
 public:
  LimitedTransport(Transport& inner, LinkLimit limit);

  [[nodiscard]] int rank() const noexcept override { return inner_.rank(); }
  [[nodiscard]] int world_size() const noexcept override { return inner_.world_size(); }
  [[nodiscard]] TransportTraits traits() const noexcept override;

  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override;
  Status receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                 Request& request) noexcept override;
  Status wait(Request& request, Deadline deadline) noexcept override;
  void abort() noexcept override;
  [[nodiscard]] TransportCounters counters() const noexcept override { return inner_.counters(); }
  /// Takes the time of a ring: 2·(P − 1) messages of 1/P of the bytes.
  Status dense_all_reduce(TensorView data) noexcept override;

 private:
  /// Occupies the link after what is booked already; returns when it is free again.
  [[nodiscard]] Clock::time_point book(double num_bytes, double num_messages) noexcept;
  /// Code::aborted if that comes before the time.
  Status sleep_until(Clock::time_point time) noexcept;

  Transport& inner_;
  LinkLimit limit_;
  std::mutex mutex_;
  std::condition_variable abort_called_;
  bool aborted_ = false;
  Clock::time_point link_free_;
};

}  // namespace gradsieve
