// SPDX-License-Identifier: Apache-2.0
#include "comm/limited_transport.hpp"

#include <cmath>
#include <future>
#include <limits>

#include <gtest/gtest.h>

#include "tests/distributed/exchange_checks.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::test {
namespace {

using namespace std::chrono_literals;

TEST(LimitedTransport, ChangesNoResult) {
  for (NamedCheck const& check : exchange_checks()) {
    run_ranks(3, [&](Transport& inner) {
      std::unique_ptr<Transport> const transport =
          make_limited(inner, {.bits_per_second = 1e10, .latency = 1us});
      EXPECT_EQ(check.run(*transport), "") << check.name;
    });
  }
}

/// How long rank 0 waits for `num_messages` sends of 1000 bytes.
Clock::duration time_of(LinkLimit limit, int num_messages) {
  Clock::duration elapsed{};
  run_ranks(2, [&](Transport& inner) {
    std::unique_ptr<Transport> const transport = make_limited(inner, limit);
    std::vector<std::byte> bytes(1000);
    std::vector<Request> requests(static_cast<std::size_t>(num_messages));
    Clock::time_point const start = Clock::now();
    for (Request& request : requests) {
      Status const status = transport->rank() == 0
                                ? transport->send(Channel::data, 1, 2, bytes, request)
                                : transport->receive(Channel::data, 0, 2, bytes, request);
      EXPECT_TRUE(status.ok());
    }
    // Sleeping is for wait(): starting takes no time of the link.
    if (transport->rank() == 0) {
      EXPECT_LT(Clock::now() - start, 100ms);
    }
    for (Request& request : requests) EXPECT_TRUE(transport->wait(request, soon()).ok());
    if (transport->rank() == 0) elapsed = Clock::now() - start;
  });
  return elapsed;
}

TEST(LimitedTransport, AMessageTakesLatencyAndItsBytesOneAfterAnother) {
  EXPECT_GE(time_of({.latency = 30ms}, 1), 30ms);
  EXPECT_GE(time_of({.latency = 30ms}, 4), 120ms);
  EXPECT_GE(time_of({.bits_per_second = 80'000}, 1), 100ms);  // 8000 bits
  EXPECT_GE(time_of({.bits_per_second = 80'000, .latency = 10ms}, 2), 220ms);
  EXPECT_LT(time_of({}, 4), 100ms);
}

TEST(LimitedTransport, ALinkThatIsTooSlowIsATimeout) {
  run_ranks(2, [](Transport& inner) {
    std::unique_ptr<Transport> const transport = make_limited(inner, {.latency = 10s});
    std::array<std::byte, 4> bytes{};
    Request request;
    if (transport->rank() == 1) {
      ASSERT_TRUE(transport->receive(Channel::data, 0, 2, bytes, request).ok());
      EXPECT_TRUE(transport->wait(request, soon()).ok());
      return;
    }
    ASSERT_TRUE(transport->send(Channel::data, 1, 2, bytes, request).ok());
    Clock::time_point const start = Clock::now();
    EXPECT_EQ(transport->wait(request, start + 50ms).code(), Code::timeout);
    EXPECT_EQ(request.status.code(), Code::timeout);
    EXPECT_LT(Clock::now() - start, 5s);
  });
}

TEST(LimitedTransport, AbortEndsASleep) {
  LocalGroup group(2);
  std::unique_ptr<Transport> const transport = make_limited(group.transport(0), {.latency = 15s});
  std::array<std::byte, 4> bytes{};
  std::array<Request, 2> requests;
  ASSERT_TRUE(group.transport(1).receive(Channel::data, 0, 2, bytes, requests[1]).ok());
  ASSERT_TRUE(transport->send(Channel::data, 1, 2, bytes, requests[0]).ok());
  auto waiting =
      std::async(std::launch::async, [&] { return transport->wait(requests[0], soon()); });
  transport->abort();
  EXPECT_EQ(waiting.get().code(), Code::aborted);
}

TEST(LimitedTransport, ALinkAroundALinkIsAsSlowAsTheSlower) {
  run_ranks(2, [](Transport& innermost) {
    std::unique_ptr<Transport> const inner = make_limited(innermost, {.latency = 60ms});
    std::unique_ptr<Transport> const outer = make_limited(*inner, {.latency = 1ms});
    Clock::time_point const start = Clock::now();
    EXPECT_EQ(check_word(*outer), "");  // two words, one after the other
    EXPECT_GE(Clock::now() - start, 120ms);
  });
}

TEST(LimitedTransport, RefusesLimitsThatMakeNoSense) {
  LocalGroup group(1);
  Transport& inner = group.transport(0);
  EXPECT_THROW(static_cast<void>(make_limited(inner, {.bits_per_second = -1.0})), Error);
  EXPECT_THROW(static_cast<void>(make_limited(inner, {.bits_per_second = std::nan("")})), Error);
  EXPECT_THROW(static_cast<void>(make_limited(inner, {.latency = -1ns})), Error);
  double const infinite = std::numeric_limits<double>::infinity();
  EXPECT_THROW(static_cast<void>(make_limited(inner, {.bits_per_second = infinite})), Error);
}

}  // namespace
}  // namespace gradsieve::test
