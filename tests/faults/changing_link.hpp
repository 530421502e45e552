// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>

#include "comm/limited_transport.hpp"
#include "tests/support/test_transports.hpp"

namespace gradsieve::testing {

/// Two limits on one link, of which one is in force.
class ChangingLink final : public ForwardingTransport {
 public:
  explicit ChangingLink(Transport& inner)
      : ForwardingTransport(inner),
        fast_(make_limited(inner, {})),
        slow_(make_limited(inner, {.bits_per_second = 100.0})) {}

  void crawl(bool crawling) { crawling_ = crawling; }
  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override {
    Transport& link = crawling_ && channel == Channel::data ? *slow_ : *fast_;
    return link.send(channel, peer, tag, bytes, request);
  }
  Status receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                 Request& request) noexcept override {
    return fast_->receive(channel, peer, tag, bytes, request);
  }
  Status wait(Request& request, Deadline deadline) noexcept override {
    return slow_->wait(request, deadline);  // the time is in the request, whoever booked it
  }

 private:
  std::unique_ptr<Transport> fast_;
  std::unique_ptr<Transport> slow_;
  std::atomic<bool> crawling_{false};
};

}  // namespace gradsieve::testing
