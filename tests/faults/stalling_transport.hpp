// SPDX-License-Identifier: Apache-2.0
// A rank that stops answering in the middle of a step, as a process that was stopped does.
#pragma once

#include <atomic>
#include <latch>

#include "tests/support/test_transports.hpp"

namespace gradsieve::testing {

/// After stall_after() and that many calls more, the caller stands still until `over` is reached;
/// from then on every call is Code::aborted, because the others are gone by then.
class StallingTransport final : public ForwardingTransport {
 public:
  StallingTransport(Transport& inner, std::latch& over) : ForwardingTransport(inner), over_(over) {}

  void stall_after(int num_calls) { calls_left_ = num_calls; }

  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override {
    return stalls() ? refuse(request) : inner_.send(channel, peer, tag, bytes, request);
  }
  Status receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                 Request& request) noexcept override {
    return stalls() ? refuse(request) : inner_.receive(channel, peer, tag, bytes, request);
  }
  Status wait(Request& request, Deadline deadline) noexcept override {
    if (!stalls()) return inner_.wait(request, deadline);
    inner_.abort();  // takes back what is under way
    return request.done ? request.status : inner_.wait(request, Clock::now());
  }

 private:
  [[nodiscard]] bool stalls() noexcept {
    if (calls_left_.load() < 0 || calls_left_.fetch_sub(1) > 0) return false;
    calls_left_ = 0;
    over_.wait();
    return true;
  }
  static Status refuse(Request& request) noexcept {
    request.done = true;
    return request.status = {Code::aborted, "this rank has slept through it"};
  }

  std::latch& over_;
  std::atomic<int> calls_left_{-1};
};

}  // namespace gradsieve::testing
