// SPDX-License-Identifier: Apache-2.0
// The MPI transport, under mpirun with 1 to 4 ranks: every check of exchange_checks.hpp with whole
// and with chunked messages, and what is special to MPI.
#include <array>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/distributed/exchange_checks.hpp"
#include "tests/support/mpi_runner.hpp"

namespace gradsieve::test {
namespace {

constexpr MpiOptions kSmallChunks{.chunk_bytes = 1024};

Deadline soon() { return Clock::now() + std::chrono::seconds(20); }

class MpiExchange : public testing::TestWithParam<std::tuple<std::size_t, std::size_t>> {};

TEST_P(MpiExchange, HoldsOnEveryRank) {
  auto const [index, chunk_bytes] = GetParam();
  NamedCheck const& check = exchange_checks()[index];

  run_mpi_rank([&](Transport& transport) { EXPECT_EQ(check.run(transport), ""); },
               {.chunk_bytes = chunk_bytes});
}

INSTANTIATE_TEST_SUITE_P(Checks, MpiExchange,
                         testing::Combine(testing::Range(std::size_t{0}, exchange_checks().size()),
                                          testing::Values(std::size_t{1} << 30, std::size_t{1024},
                                                          std::size_t{7})),
                         [](auto const& instance) {
                           return std::string(exchange_checks()[std::get<0>(instance.param)].name) +
                                  "_chunk_" + std::to_string(std::get<1>(instance.param));
                         });

/// A message of `num_bytes` to the next rank and one from the previous, with room for `room_bytes`.
struct Ring {
  Ring(Transport& transport, std::size_t num_bytes, std::size_t room_bytes)
      : sent(num_bytes), received(room_bytes + 16) {
    int const world_size = transport.world_size();
    int const from = (transport.rank() + world_size - 1) % world_size;
    for (std::size_t i = 0; i < num_bytes; ++i) sent[i] = byte(transport.rank(), i);
    for (std::byte& byte : received) byte = std::byte{0xee};
    EXPECT_TRUE(
        transport.receive(Channel::data, from, 3, Bytes(received).first(room_bytes), requests[0])
            .ok());
    EXPECT_TRUE(transport
                    .send(Channel::data, (transport.rank() + 1) % world_size, 3, ConstBytes(sent),
                          requests[1])
                    .ok());
    receive_status = transport.wait(requests[0], soon());
    send_status = transport.wait(requests[1], soon());
    for (std::size_t i = 0; i < num_bytes && num_bytes <= room_bytes; ++i)
      if (received[i] != byte(from, i) && first_wrong == num_bytes + 1) first_wrong = i;
    for (std::size_t i = std::min(num_bytes, room_bytes);
         i < received.size() && num_bytes <= room_bytes; ++i)
      if (received[i] != std::byte{0xee}) first_wrong = i;
    for (std::size_t i = room_bytes; i < received.size(); ++i)
      if (received[i] != std::byte{0xee}) first_wrong = i;
  }
  static std::byte byte(int rank, std::size_t i) {
    return static_cast<std::byte>((1000 * static_cast<std::size_t>(rank) + i) % 251);
  }

  std::vector<std::byte> sent;
  std::vector<std::byte> received;
  std::array<Request, 2> requests;
  Status receive_status;
  Status send_status;
  std::size_t first_wrong = sent.size() + 1;
};

TEST(MpiTransport, ChunksKeepEveryByteAtEachLength) {
  run_mpi_rank(
      [](Transport& transport) {
        for (std::size_t const num_bytes : {0U, 1U, 1023U, 1024U, 1025U, 2048U, 5000U}) {
          Ring const ring(transport, num_bytes, 6000);
          EXPECT_TRUE(ring.receive_status.ok())
              << num_bytes << ": " << ring.receive_status.message();
          EXPECT_TRUE(ring.send_status.ok()) << num_bytes << ": " << ring.send_status.message();
          EXPECT_EQ(ring.requests[0].num_bytes, num_bytes);
          EXPECT_EQ(ring.first_wrong, num_bytes + 1);
        }
      },
      kSmallChunks);
}

TEST(MpiTransport, AMessageThatExactlyFillsItsRoomArrives) {
  run_mpi_rank(
      [](Transport& transport) {
        for (std::size_t const num_bytes : {0U, 1U, 1023U, 1024U, 1025U, 2048U}) {
          Ring const ring(transport, num_bytes, num_bytes);
          EXPECT_TRUE(ring.receive_status.ok())
              << num_bytes << ": " << ring.receive_status.message();
          EXPECT_EQ(ring.first_wrong, num_bytes + 1);
        }
      },
      kSmallChunks);
}

// The rest of a message that is too long must not be taken for the next one.
TEST(MpiTransport, ATooLongMessageIsAnErrorAndTheNextOneArrives) {
  for (std::size_t const chunk_bytes : {std::size_t{1024}, std::size_t{1} << 30}) {
    run_mpi_rank(
        [](Transport& transport) {
          for (std::size_t const num_bytes : {2U, 1025U, 5000U, 300'000U}) {
            Ring const ring(transport, num_bytes, num_bytes - 1);
            EXPECT_EQ(ring.receive_status.code(), Code::capacity_exceeded) << num_bytes;
            EXPECT_EQ(ring.requests[0].num_bytes, num_bytes);
            EXPECT_TRUE(ring.send_status.ok()) << num_bytes << ": " << ring.send_status.message();
            EXPECT_EQ(ring.first_wrong, num_bytes + 1) << "a store beyond the room";
            Ring const next(transport, 77, 100);
            EXPECT_TRUE(next.receive_status.ok())
                << num_bytes << ": " << next.receive_status.message();
            EXPECT_EQ(next.requests[0].num_bytes, 77);
          }
        },
        {.chunk_bytes = chunk_bytes});
  }
}

TEST(MpiTransport, LargeMessagesArriveWhole) {
  run_mpi_rank([](Transport& transport) {
    Ring const ring(transport, 8 << 20, 8 << 20);
    EXPECT_TRUE(ring.receive_status.ok());
    EXPECT_EQ(ring.first_wrong, ring.sent.size() + 1);
  });
}

TEST(MpiTransport, CountsWhatIsHandedToSend) {
  run_mpi_rank(
      [](Transport& transport) {
        Ring const ring(transport, 5000, 5000);
        EXPECT_EQ(transport.counters().bytes_sent, 5000);
        EXPECT_EQ(transport.counters().messages_sent, 1);
      },
      kSmallChunks);
}

TEST(MpiTransport, AReceiveThatNobodyAnswersTimesOut) {
  run_mpi_rank([](Transport& transport) {
    std::array<std::byte, 8> room{};
    Request request;
    ASSERT_TRUE(transport.receive(Channel::data, 0, 11, room, request).ok());
    Clock::time_point const start = Clock::now();

    Status const status = transport.wait(request, start + std::chrono::milliseconds(100));

    EXPECT_EQ(status.code(), Code::timeout);
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(100));
    EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(600));
  });
}

TEST(MpiTransport, ASilentRankIsATimeoutThatNamesIt) {
  run_mpi_rank([](Transport& transport) {
    int const silent_rank = transport.world_size() - 1;
    if (transport.rank() == silent_rank) return;
    Exchanger exchanger(transport, 20, std::chrono::milliseconds(200));
    std::array<std::byte, 64> const own{};
    exchange::ExchangeContext& context = exchanger.next(4 * own.size());
    int num_heard = 0;
    Clock::time_point const start = Clock::now();

    Status const status = exchange::all_gather(context, own, own.size(), [&](int, ConstBytes) {
      ++num_heard;
      return Status{};
    });

    EXPECT_EQ(status.code(), Code::timeout);
    EXPECT_EQ(context.blamed_rank, silent_rank);
    EXPECT_EQ(num_heard, transport.world_size() - 1);
    EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(200 + 500));
    // The control channel still works among those who are left: a roll call.
    exchange::ExchangeContext roll_call = exchanger.next();
    roll_call.channel = Channel::control;
    std::array<std::uint64_t, 8> words{};
    std::array<bool, 8> heard{};
    std::size_t const ranks = static_cast<std::size_t>(transport.world_size());
    EXPECT_EQ(exchange::all_gather_word(roll_call, 1, std::span(words).first(ranks),
                                        std::span(heard).first(ranks))
                  .code(),
              Code::timeout);
    for (std::size_t rank = 0; rank < ranks; ++rank) EXPECT_EQ(heard[rank], rank + 1 < ranks);
  });
}

// A send that nobody receives is longer than what MPI sends unasked: MPI keeps it.
TEST(MpiTransport, ALongSendThatNobodyReceivesTimesOut) {
  static std::vector<std::byte> const bytes(1 << 20);
  run_mpi_rank([](Transport& transport) {
    if (transport.world_size() == 1) return;
    Request request;
    int const peer = (transport.rank() + 1) % transport.world_size();
    ASSERT_TRUE(transport.send(Channel::data, peer, 13, bytes, request).ok());
    EXPECT_EQ(transport.wait(request, Clock::now() + std::chrono::milliseconds(50)).code(),
              Code::timeout);
    EXPECT_EQ(check_word(transport), "");
  });
}

TEST(MpiTransport, RefusesRanksAndTagsThatDoNotExist) {
  run_mpi_rank([](Transport& transport) {
    Request request;
    EXPECT_EQ(transport.send(Channel::data, transport.world_size(), 0, {}, request).code(),
              Code::invalid_argument);
    EXPECT_EQ(transport.receive(Channel::data, -1, 0, {}, request).code(), Code::invalid_argument);
    EXPECT_EQ(
        transport.send(Channel::data, 0, std::numeric_limits<std::uint32_t>::max(), {}, request)
            .code(),
        Code::invalid_argument);
    EXPECT_EQ(transport.wait(request, soon()).code(), Code::invalid_argument);
  });
}

TEST(MpiTransport, AbortEndsEveryWait) {
  run_mpi_rank([](Transport& transport) {
    std::array<std::byte, 8> room{};
    Request request;
    ASSERT_TRUE(transport.receive(Channel::data, 0, 12, room, request).ok());
    std::thread aborter([&] { transport.abort(); });
    EXPECT_EQ(transport.wait(request, soon()).code(), Code::aborted);
    aborter.join();
    EXPECT_EQ(transport.receive(Channel::data, 0, 12, room, request).code(), Code::aborted);
  });
}

TEST(MpiTransport, RefusesOptionsThatCannotWork) {
  EXPECT_THROW(static_cast<void>(make_mpi_transport(MPI_COMM_NULL)), Error);
  EXPECT_THROW(static_cast<void>(make_mpi_transport(MPI_COMM_WORLD, {.chunk_bytes = 0})), Error);
  EXPECT_THROW(
      static_cast<void>(make_mpi_transport(MPI_COMM_WORLD, {.chunk_bytes = std::size_t{1} << 31})),
      Error);
}

TEST(MpiTransport, RanksWithDifferentOptionsAreToldSo) {
  int rank = 0;
  int world_size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  std::size_t const chunk_bytes = rank == 0 ? 1024 : 2048;
  try {
    auto const transport = make_mpi_transport(MPI_COMM_WORLD, {.chunk_bytes = chunk_bytes});
    EXPECT_EQ(world_size, 1);
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), Code::mismatch);
    EXPECT_NE(std::string(error.what()).find("1024"), std::string::npos) << error.what();
  }
}

TEST(MpiTransport, MpienvC74ForkedChildrenAreRefusedAndTheParentGoesOn) {
  run_mpi_rank([](Transport& transport) {
    std::array<pid_t, 4> children{};
    for (std::size_t i = 0; i < children.size(); ++i) {
      children[i] = ::fork();
      if (children[i] != 0) continue;
      bool const uses_the_library = i >= 2;
      if (!uses_the_library) ::_exit(0);
      Request request;
      bool const refused =
          transport.send(Channel::data, 0, 1, {}, request).code() == Code::forked_child &&
          transport.receive(Channel::data, 0, 1, {}, request).code() == Code::forked_child &&
          transport.dense_all_reduce({}).code() == Code::forked_child;
      ::_exit(refused ? 0 : 1);
    }
    for (pid_t const child : children) {
      int status = -1;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    EXPECT_EQ(check_all_reduce_f32(transport), "");
  });
}

template <typename T>
void expect_dense_sum(Transport& transport) {
  std::vector<T> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<T>(rank_value(transport.rank(), i));
  ASSERT_TRUE(transport.dense_all_reduce(std::span<T>(values)).ok());
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint64_t expected = 0;
    for (int rank = 0; rank < transport.world_size(); ++rank) expected += rank_value(rank, i);
    ASSERT_EQ(values[i], static_cast<T>(expected)) << i;
  }
}

TEST(MpiTransport, DenseAllReduceAdds) {
  run_mpi_rank([](Transport& transport) {
    expect_dense_sum<float>(transport);
    expect_dense_sum<double>(transport);
    EXPECT_TRUE(transport.dense_all_reduce(std::span<float>()).ok());
  });
}

// Rank r brings [1, 2, …] + 2r; small integers are exact in both formats.
TEST(MpiTransport, MpienvC76DenseAllReduceAddsBothHalfFormats) {
  run_mpi_rank([](Transport& transport) {
    constexpr std::array<std::uint16_t, 17> kFloat16{0x0000, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500,
                                                     0x4600, 0x4700, 0x4800, 0x4880, 0x4900, 0x4980,
                                                     0x4a00, 0x4a80, 0x4b00, 0x4b80, 0x4c00};
    auto const bfloat16 = [](std::size_t value) {
      return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >>
                                        16);
    };
    std::size_t const rank = static_cast<std::size_t>(transport.rank());
    std::size_t const ranks = static_cast<std::size_t>(transport.world_size());
    std::array<Float16, 2> halves{Float16{kFloat16[1 + 2 * rank]}, Float16{kFloat16[2 + 2 * rank]}};
    std::array<BFloat16, 2> brains{BFloat16{bfloat16(1 + 2 * rank)},
                                   BFloat16{bfloat16(2 + 2 * rank)}};

    ASSERT_TRUE(transport.dense_all_reduce(std::span<Float16>(halves)).ok());
    ASSERT_TRUE(transport.dense_all_reduce(std::span<BFloat16>(brains)).ok());

    // Σ (1 + 2r) = P², Σ (2 + 2r) = P² + P: [4, 6] with two ranks.
    EXPECT_EQ(brains[0].bits, bfloat16(ranks * ranks));
    EXPECT_EQ(brains[1].bits, bfloat16(ranks * ranks + ranks));
    if (ranks * ranks < kFloat16.size()) {
      EXPECT_EQ(halves[0].bits, kFloat16[ranks * ranks]);
    }
    if (ranks * ranks + ranks < kFloat16.size()) {
      EXPECT_EQ(halves[1].bits, kFloat16[ranks * ranks + ranks]);
    }
  });
}

}  // namespace
}  // namespace gradsieve::test
