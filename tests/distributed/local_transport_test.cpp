// SPDX-License-Identifier: Apache-2.0
// What the local transport does with lengths, deadlines, aborts and forks.
#include <array>
#include <future>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gradsieve/transport.hpp"

#include "tests/support/rank_runner.hpp"

namespace gradsieve::test {
namespace {

using namespace std::chrono_literals;

std::vector<std::byte> bytes_of(std::string const& text) {
  ConstBytes const bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(LocalTransport, AMessageArrivesWhicheverSideComesFirst) {
  for (bool const send_first : {true, false}) {
    LocalGroup group(2);
    std::vector<std::byte> const sent = bytes_of("gradient");
    std::vector<std::byte> room(20, std::byte{'.'});
    std::array<Request, 2> requests;
    auto const send = [&] {
      return group.transport(0).send(Channel::data, 1, 4, sent, requests[0]);
    };
    if (send_first) {
      ASSERT_TRUE(send().ok());
    }
    ASSERT_TRUE(group.transport(1).receive(Channel::data, 0, 4, room, requests[1]).ok());
    if (!send_first) {
      ASSERT_TRUE(send().ok());
    }

    EXPECT_TRUE(group.transport(1).wait(requests[1], soon()).ok());
    EXPECT_TRUE(group.transport(0).wait(requests[0], soon()).ok());

    EXPECT_EQ(requests[1].num_bytes, 8);
    room.resize(8);
    EXPECT_EQ(room, sent);
  }
}

TEST(LocalTransport, AMessageOfNoBytesIsAMessage) {
  LocalGroup group(2);
  std::array<Request, 2> requests;
  ASSERT_TRUE(group.transport(0).send(Channel::control, 1, 4, {}, requests[0]).ok());
  ASSERT_TRUE(group.transport(1).receive(Channel::control, 0, 4, {}, requests[1]).ok());
  EXPECT_TRUE(group.transport(1).wait(requests[1], soon()).ok());
  EXPECT_TRUE(group.transport(0).wait(requests[0], soon()).ok());
  EXPECT_EQ(requests[1].num_bytes, 0);
}

TEST(LocalTransport, ATooLongMessageStoresNothingAndTheSenderIsDone) {
  LocalGroup group(2);
  std::vector<std::byte> const sent = bytes_of("gradient");
  std::vector<std::byte> room(7, std::byte{'.'});
  std::array<Request, 2> requests;
  ASSERT_TRUE(group.transport(0).send(Channel::data, 1, 4, sent, requests[0]).ok());
  ASSERT_TRUE(group.transport(1).receive(Channel::data, 0, 4, room, requests[1]).ok());
  EXPECT_EQ(group.transport(1).wait(requests[1], soon()).code(), Code::capacity_exceeded);
  EXPECT_TRUE(group.transport(0).wait(requests[0], soon()).ok());
  EXPECT_EQ(room, std::vector<std::byte>(7, std::byte{'.'}));
}

TEST(LocalTransport, MatchesByChannelAndTag) {
  LocalGroup group(2);
  std::vector<std::byte> const first = bytes_of("1");
  std::vector<std::byte> const second = bytes_of("2");
  std::vector<std::byte> const third = bytes_of("3");
  std::array<std::byte, 1> room{};
  std::array<Request, 4> requests;
  ASSERT_TRUE(group.transport(0).send(Channel::data, 1, 4, first, requests[0]).ok());
  ASSERT_TRUE(group.transport(0).send(Channel::data, 1, 5, second, requests[1]).ok());
  ASSERT_TRUE(group.transport(0).send(Channel::control, 1, 4, third, requests[2]).ok());
  auto const receive = [&](Channel channel, std::uint32_t tag) {
    EXPECT_TRUE(group.transport(1).receive(channel, 0, tag, room, requests[3]).ok());
    EXPECT_TRUE(group.transport(1).wait(requests[3], soon()).ok());
    return static_cast<char>(room[0]);
  };
  EXPECT_EQ(receive(Channel::control, 4), '3');
  EXPECT_EQ(receive(Channel::data, 5), '2');
  EXPECT_EQ(receive(Channel::data, 4), '1');
}

TEST(LocalTransport, ATimedOutReceiveIsTakenBack) {
  LocalGroup group(2);
  std::array<std::byte, 8> room{};
  std::vector<std::byte> const late = bytes_of("too late");
  std::array<Request, 2> requests;
  ASSERT_TRUE(group.transport(1).receive(Channel::data, 0, 4, room, requests[0]).ok());
  EXPECT_EQ(group.transport(1).wait(requests[0], Clock::now() + 20ms).code(), Code::timeout);

  ASSERT_TRUE(group.transport(0).send(Channel::data, 1, 4, late, requests[1]).ok());
  EXPECT_EQ(group.transport(0).wait(requests[1], Clock::now() + 20ms).code(), Code::timeout);

  EXPECT_EQ(room, (std::array<std::byte, 8>{}));
  EXPECT_EQ(group.transport(1).wait(requests[0], soon()).code(), Code::timeout);
}

TEST(LocalTransport, ADeadlineInThePastStillFindsWhatIsDone) {
  LocalGroup group(1);
  std::array<std::byte, 1> room{};
  std::array<std::byte, 1> const sent{std::byte{5}};
  std::array<Request, 2> requests;
  ASSERT_TRUE(group.transport(0).send(Channel::data, 0, 4, sent, requests[0]).ok());
  ASSERT_TRUE(group.transport(0).receive(Channel::data, 0, 4, room, requests[1]).ok());
  EXPECT_TRUE(group.transport(0).wait(requests[0], Clock::now() - 1s).ok());
  EXPECT_TRUE(group.transport(0).wait(requests[1], Clock::now() - 1s).ok());
  EXPECT_EQ(room[0], std::byte{5});
}

TEST(LocalTransport, AbortEndsEveryWaitOfThatRankAndNoOther) {
  LocalGroup group(2);
  std::array<std::byte, 8> room{};
  std::array<std::byte, 8> const sent{};
  std::array<Request, 3> requests;
  ASSERT_TRUE(group.transport(1).receive(Channel::data, 0, 4, room, requests[0]).ok());
  ASSERT_TRUE(group.transport(0).send(Channel::data, 1, 9, sent, requests[1]).ok());
  auto waiting =
      std::async(std::launch::async, [&] { return group.transport(1).wait(requests[0], soon()); });

  group.transport(1).abort();

  EXPECT_EQ(waiting.get().code(), Code::aborted);
  EXPECT_EQ(group.transport(1).receive(Channel::data, 0, 9, room, requests[2]).code(),
            Code::aborted);
  EXPECT_EQ(group.transport(1).wait(requests[2], soon()).code(), Code::aborted);
  EXPECT_EQ(group.transport(0).wait(requests[1], Clock::now() + 20ms).code(), Code::timeout);
}

TEST(LocalTransport, RefusesWhatMakesNoSense) {
  LocalGroup group(2);
  Request request;
  EXPECT_EQ(group.transport(0).wait(request, soon()).code(), Code::invalid_usage);
  EXPECT_EQ(group.transport(0).send(Channel::data, 2, 0, {}, request).code(),
            Code::invalid_argument);
  EXPECT_EQ(group.transport(0).receive(Channel::data, -1, 0, {}, request).code(),
            Code::invalid_argument);
  EXPECT_EQ(group.transport(0).dense_all_reduce({}).code(), Code::unsupported);
  EXPECT_THROW(LocalGroup(0), Error);
}

TEST(LocalTransport, CountsWhatIsHandedToSend) {
  LocalGroup group(2);
  std::array<std::byte, 8> const sent{};
  std::array<Request, 2> requests;
  ASSERT_TRUE(group.transport(0).send(Channel::data, 1, 4, sent, requests[0]).ok());
  ASSERT_TRUE(
      group.transport(0).send(Channel::control, 1, 4, ConstBytes(sent).first(3), requests[1]).ok());
  EXPECT_EQ(group.transport(0).counters().bytes_sent, 11);
  EXPECT_EQ(group.transport(0).counters().messages_sent, 2);
  EXPECT_EQ(group.transport(1).counters().messages_sent, 0);
  for (Request& request : requests)
    EXPECT_FALSE(group.transport(0).wait(request, Clock::now()).ok());
}

TEST(LocalTransport, AForkedChildIsRefusedAtOnce) {
  LocalGroup group(2);
  std::array<std::byte, 8> room{};
  Request request;
  Request unanswered;
  ASSERT_TRUE(group.transport(0).receive(Channel::data, 1, 4, room, unanswered).ok());
  pid_t const child = ::fork();
  if (child == 0) {
    bool const refused =
        group.transport(0).send(Channel::data, 1, 1, {}, request).code() == Code::forked_child &&
        group.transport(0).receive(Channel::data, 1, 1, {}, request).code() == Code::forked_child &&
        group.transport(0).wait(unanswered, soon()).code() == Code::forked_child;
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(group.transport(0).wait(unanswered, Clock::now()).code(), Code::timeout);
}

TEST(RankRunner, ThrowsTheFirstFailureWithItsRank) {
  try {
    run_ranks(3, [](Transport& transport) {
      if (transport.rank() == 1) throw std::runtime_error("no memory");
      std::array<std::byte, 1> room{};
      Request request;
      EXPECT_TRUE(transport.receive(Channel::data, 1, 0, room, request).ok() || true);
      EXPECT_EQ(transport.wait(request, soon()).code(), Code::aborted);
    });
    FAIL() << "expected an exception";
  } catch (std::runtime_error const& error) {
    EXPECT_EQ(std::string(error.what()), "rank 1: no memory");
  }
}

}  // namespace
}  // namespace gradsieve::test
