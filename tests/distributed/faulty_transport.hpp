// SPDX-License-Identifier: Apache-2.0
// A transport that changes what it sends: what a check must not let pass.
#pragma once

#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "gradsieve/transport.hpp"

namespace gradsieve::test {

/// Calls fault(peer, index, bytes) on a copy of each message before it goes out; `index` counts the
/// messages of this rank. `route` may send it to another rank. Copies live as long as the
/// transport.
class FaultyTransport final : public Transport {
 public:
  using Fault = std::function<void(int peer, std::uint64_t index, std::vector<std::byte>& bytes)>;
  using Route = std::function<int(int own_rank, int peer)>;

  FaultyTransport(Transport& inner, Fault fault, Route route = {})
      : inner_(inner), fault_(std::move(fault)), route_(std::move(route)) {}

  [[nodiscard]] int rank() const noexcept override { return inner_.rank(); }
  [[nodiscard]] int world_size() const noexcept override { return inner_.world_size(); }
  [[nodiscard]] TransportTraits traits() const noexcept override { return inner_.traits(); }
  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override {
    std::vector<std::byte>& copy = copies_.emplace_back(bytes.begin(), bytes.end());
    if (fault_) fault_(peer, num_messages_, copy);
    ++num_messages_;
    return inner_.send(channel, routed(peer), tag, copy, request);
  }
  Status receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                 Request& request) noexcept override {
    return inner_.receive(channel, routed(peer), tag, bytes, request);
  }
  Status wait(Request& request, Deadline deadline) noexcept override {
    return inner_.wait(request, deadline);
  }
  void abort() noexcept override { inner_.abort(); }
  [[nodiscard]] TransportCounters counters() const noexcept override { return inner_.counters(); }

 private:
  [[nodiscard]] int routed(int peer) const { return route_ ? route_(rank(), peer) : peer; }

  Transport& inner_;
  Fault fault_;
  Route route_;
  std::uint64_t num_messages_ = 0;
  std::deque<std::vector<std::byte>> copies_;
};

}  // namespace gradsieve::test
