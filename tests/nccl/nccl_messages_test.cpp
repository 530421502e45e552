// SPDX-License-Identifier: Apache-2.0
// A transport that has nothing but somebody else's communicator, also for host memory.
#include <string>
#include <thread>
#include <tuple>

#include <gtest/gtest.h>

#include "comm/nccl/nccl_exchange.hpp"
#include "comm/nccl/nccl_frame.hpp"
#include "comm/nccl/nccl_setup.hpp"
#include "tests/distributed/exchange_checks.hpp"
#include "tests/nccl/nccl_ranks.hpp"

namespace gradsieve::testing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{600};
constexpr milliseconds kSlack{20000};

/// Each rank with a transport over a communicator that belongs to the test.
void run_borrowing_ranks(int world_size, NcclOptions options,
                         std::function<void(Transport&, NcclCommunicator& owner)> const& body) {
  run_device_ranks(world_size, [&](Transport& host) {
    std::unique_ptr<NcclCommunicator> const owner = make_communicator(host);
    std::unique_ptr<Transport> const transport = make_nccl_transport(owner->handle(), options);
    body(*transport, *owner);
  });
}

void run_borrowing_ranks(int world_size, std::function<void(Transport&)> const& body) {
  run_borrowing_ranks(world_size, {},
                      [&](Transport& transport, NcclCommunicator&) { body(transport); });
}

class NcclMessageChecks : public ::testing::TestWithParam<std::tuple<std::size_t, int>> {};

TEST_P(NcclMessageChecks, HoldOnEveryRank) {
  auto const [index, world_size] = GetParam();
  if (!has_devices(world_size)) GTEST_SKIP() << "needs " << world_size << " devices";
  test::NamedCheck const& check = test::exchange_checks()[index];
  run_borrowing_ranks(world_size,
                      [&](Transport& transport) { EXPECT_EQ(check.run(transport), ""); });
}

INSTANTIATE_TEST_SUITE_P(
    Checks, NcclMessageChecks,
    ::testing::Combine(::testing::Range(std::size_t{0}, test::exchange_checks().size()),
                       ::testing::Values(1, 2, 3, 4)),
    [](auto const& instance) {
      return std::string(test::exchange_checks()[std::get<0>(instance.param)].name) + "_ranks_" +
             std::to_string(std::get<1>(instance.param));
    });

class NcclMessagesOf : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!has_devices(GetParam())) GTEST_SKIP() << "needs " << GetParam() << " devices";
  }
};

/// A message to the next rank and one from the previous.
struct Ring {
  Ring(Transport& transport, std::size_t num_bytes, std::size_t room_bytes)
      : previous((transport.rank() + transport.world_size() - 1) % transport.world_size()),
        sent(bytes_of(transport.rank(), num_bytes)),
        received(room_bytes) {
    int const next = (transport.rank() + 1) % transport.world_size();
    EXPECT_TRUE(transport.receive(Channel::data, previous, 3, received, receiving).ok());
    EXPECT_TRUE(transport.send(Channel::data, next, 3, sent, sending).ok());
    receive_status = transport.wait(receiving, test::soon());
    send_status = transport.wait(sending, test::soon());
  }
  int previous;
  std::vector<std::byte> sent;
  std::vector<std::byte> received;
  Request receiving;
  Request sending;
  Status receive_status;
  Status send_status;
};

TEST_P(NcclMessagesOf, EveryLengthArrives) {
  run_borrowing_ranks(GetParam(), [](Transport& transport) {
    for (std::size_t const border :
         {std::size_t{1}, kNcclFrameRoom, kNcclFrameRoom + kNcclPieceBytes,
          kNcclFrameRoom + 3 * kNcclPieceBytes}) {
      for (std::size_t const size : {border - 1, border, border + 1}) {
        Ring ring(transport, size, size + 10);
        ASSERT_TRUE(ring.receive_status.ok()) << size << ": " << ring.receive_status.message();
        ASSERT_TRUE(ring.send_status.ok()) << size << ": " << ring.send_status.message();
        ASSERT_EQ(ring.receiving.num_bytes, size);
        ring.received.resize(size);
        ASSERT_EQ(ring.received, bytes_of(ring.previous, size)) << size;
      }
    }
  });
}

TEST_P(NcclMessagesOf, ATooLongMessageIsAnErrorAndTheNextOneArrives) {
  run_borrowing_ranks(GetParam(), [](Transport& transport) {
    for (std::size_t const size : {std::size_t{17}, kNcclFrameRoom + 2 * kNcclPieceBytes}) {
      Ring const ring(transport, size, size - 1);
      EXPECT_EQ(ring.receive_status.code(), Code::capacity_exceeded);
      EXPECT_EQ(ring.received, std::vector<std::byte>(size - 1));
      EXPECT_TRUE(Ring(transport, 5, 5).receive_status.ok());
    }
  });
}

TEST_P(NcclMessagesOf, TagsMayBeAskedForInAnyOrder) {
  run_borrowing_ranks(GetParam(), [](Transport& transport) {
    int const next = (transport.rank() + 1) % transport.world_size();
    int const previous = (transport.rank() + transport.world_size() - 1) % transport.world_size();
    std::size_t const sizes[] = {10, kNcclFrameRoom + kNcclPieceBytes + 1, 30};
    std::vector<std::byte> sent[3];
    Request sending[3];
    for (std::uint32_t tag = 0; tag < 3; ++tag) {
      sent[tag] = bytes_of(transport.rank(), sizes[tag], static_cast<int>(tag));
      ASSERT_TRUE(transport.send(Channel::data, next, tag, sent[tag], sending[tag]).ok());
    }
    for (std::uint32_t tag = 3; tag-- > 0;) {
      std::vector<std::byte> received(sizes[tag]);
      Request receiving;
      ASSERT_TRUE(transport.receive(Channel::data, previous, tag, received, receiving).ok());
      ASSERT_TRUE(transport.wait(receiving, test::soon()).ok());
      EXPECT_EQ(received, bytes_of(previous, sizes[tag], static_cast<int>(tag)));
    }
    for (Request& request : sending) EXPECT_TRUE(transport.wait(request, test::soon()).ok());
  });
}

TEST_P(NcclMessagesOf, CountsWhatIsHandedToSend) {
  run_borrowing_ranks(GetParam(), [](Transport& transport) {
    EXPECT_EQ(transport.counters().bytes_sent, 0U);
    EXPECT_TRUE(Ring(transport, 123, 123).receive_status.ok());
    EXPECT_EQ(transport.counters().bytes_sent, 123U);
    EXPECT_EQ(transport.counters().messages_sent, 1U);
  });
}

TEST_P(NcclMessagesOf, DeviceMemoryGoesOverTheBorrowedCommunicator) {
  run_borrowing_ranks(GetParam(), [](Transport& transport) {
    CudaStep step;
    std::size_t const num_ranks = static_cast<std::size_t>(transport.world_size());
    OnDevice<std::byte> const own(step, bytes_of(transport.rank(), 100));
    OnDevice<std::byte> const all(step, std::vector<std::byte>(100 * num_ranks));
    ASSERT_TRUE(
        transport.device_exchange()->all_gather(step.stream(), own.span(), all.span()).ok());
    std::vector<std::byte> const received = all.read();
    for (int r = 0; r < transport.world_size(); ++r) {
      std::vector<std::byte> const part(received.begin() + 100 * r,
                                        received.begin() + 100 * (r + 1));
      EXPECT_EQ(part, bytes_of(r, 100));
    }
  });
}

class NcclMessagesOfSeveral : public NcclMessagesOf {};
class NcclMessagesInLazyStreams : public NcclMessagesOf {};

// Waits of eager streams block inside the emulator, so that only the making's deadline ends them.
TEST_P(NcclMessagesOfSeveral, ASilentRankIsATimeout) {
  run_borrowing_ranks(
      GetParam(), {.call_deadline = kPatience}, [](Transport& transport, NcclCommunicator&) {
        if (transport.rank() != 0) return std::this_thread::sleep_for(3 * kPatience);
        std::vector<std::byte> received(10);
        Request receiving;
        Deadline const begin = Clock::now();
        ASSERT_TRUE(transport.receive(Channel::data, 1, 3, received, receiving).ok());
        EXPECT_EQ(transport.wait(receiving, begin + kPatience).code(), Code::timeout);
        EXPECT_LT(Clock::now() - begin, kPatience + kSlack);
      });
}

TEST_P(NcclMessagesInLazyStreams, ALateMessageStillArrives) {
  run_borrowing_ranks(GetParam(), [](Transport& transport) {
    std::vector<std::byte> bytes = bytes_of(transport.rank(), 50);
    Request request;
    if (transport.rank() == 1) {
      std::this_thread::sleep_for(kPatience);
      ASSERT_TRUE(transport.send(Channel::data, 0, 3, bytes, request).ok());
      EXPECT_TRUE(transport.wait(request, test::soon()).ok());
      return;
    }
    std::vector<std::byte> unused(50);
    Request impatient;
    ASSERT_TRUE(transport.receive(Channel::data, 1, 3, unused, impatient).ok());
    EXPECT_EQ(transport.wait(impatient, test::soon(milliseconds(50))).code(), Code::timeout);
    ASSERT_TRUE(transport.receive(Channel::data, 1, 3, bytes, request).ok());
    EXPECT_TRUE(transport.wait(request, test::soon()).ok());
    EXPECT_EQ(bytes, bytes_of(1, 50));
    EXPECT_EQ(unused, std::vector<std::byte>(50));
  });
}

TEST_P(NcclMessagesOfSeveral, AbortEndsEveryWaitAndLeavesTheCommunicatorAlone) {
  run_borrowing_ranks(GetParam(), {}, [](Transport& transport, NcclCommunicator& owner) {
    Deadline const begin = Clock::now();
    std::thread aborting([&] {
      std::this_thread::sleep_for(milliseconds(200));
      transport.abort();
    });
    std::vector<std::byte> received(10);
    Request receiving;
    int const next = (transport.rank() + 1) % transport.world_size();
    ASSERT_TRUE(transport.receive(Channel::data, next, 3, received, receiving).ok());
    Code const code = transport.wait(receiving, test::soon()).code();
    // Another rank's abort may be the first that it hears of.
    EXPECT_TRUE(code == Code::aborted || code == Code::peer_failed) << code_name(code);
    aborting.join();
    EXPECT_LT(Clock::now() - begin, kSlack);
    EXPECT_EQ(transport.device_exchange()->check().code(), Code::aborted);
    EXPECT_EQ(transport.send(Channel::data, 0, 1, {}, receiving).code(), Code::aborted);
    EXPECT_TRUE(owner.check().ok());
    CudaStep step;
    OnDevice<float> const number(step, std::vector<float>{1});
    EXPECT_TRUE(
        NcclExchange(owner)
            .all_reduce(step.stream(), ConstTensorView(number.span()), TensorView(number.span()))
            .ok());
    EXPECT_EQ(number.read()[0], static_cast<float>(transport.world_size()));
  });
}

TEST_P(NcclMessagesOf, RefusesWhatCannotBe) {
  EXPECT_THROW(static_cast<void>(make_nccl_transport(nullptr)), Error);
  run_borrowing_ranks(GetParam(), [](Transport& transport) {
    Request request;
    EXPECT_EQ(transport.send(Channel::data, transport.world_size(), 1, {}, request).code(),
              Code::invalid_argument);
    EXPECT_EQ(transport.receive(Channel::data, -1, 1, {}, request).code(), Code::invalid_argument);
    Request never_started;
    EXPECT_EQ(transport.wait(never_started, test::soon()).code(), Code::invalid_usage);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclMessagesOf, ::testing::Values(1, 2, 3, 4));
INSTANTIATE_TEST_SUITE_P(Ranks, NcclMessagesOfSeveral, ::testing::Values(2, 3, 4));
INSTANTIATE_TEST_SUITE_P(Ranks, NcclMessagesInLazyStreams, ::testing::Values(2));

}  // namespace
}  // namespace gradsieve::testing
