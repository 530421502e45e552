// SPDX-License-Identifier: Apache-2.0
// A silent rank costs the others one deadline, and they know who it was.
#include <functional>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/distributed/exchange_checks.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::test {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kDeadline = 200ms;
constexpr std::size_t kBytes = 4096;

struct NamedExchange {
  char const* name;
  /// Returns the status; heard(rank) for every rank whose bytes came.
  std::function<Status(exchange::ExchangeContext&, std::function<void(int)> const& heard)> run;
};

Status gather(exchange::ExchangeContext& context, std::function<void(int)> const& heard) {
  std::vector<std::byte> const own(kBytes);
  return exchange::all_gather(context, own, kBytes, [&](int rank, ConstBytes) {
    heard(rank);
    return Status{};
  });
}

Status to_all(exchange::ExchangeContext& context, std::function<void(int)> const& heard) {
  std::vector<std::byte> const own(kBytes);
  std::vector<ConstBytes> const for_each(static_cast<std::size_t>(context.transport->world_size()),
                                         own);
  return exchange::all_to_all(context, for_each, kBytes, [&](int rank, ConstBytes) {
    heard(rank);
    return Status{};
  });
}

Status reduce(exchange::ExchangeContext& context, std::function<void(int)> const&) {
  std::vector<float> const own(kBytes / 4);
  std::vector<float> result(own.size());
  return exchange::all_reduce(context, std::span<float const>(own), std::span<float>(result));
}

Status word(exchange::ExchangeContext& context, std::function<void(int)> const& heard) {
  std::size_t const ranks = static_cast<std::size_t>(context.transport->world_size());
  std::vector<std::uint64_t> words(ranks);
  std::unique_ptr<bool[]> const flags = std::make_unique<bool[]>(ranks);
  Status const status = exchange::all_gather_word(context, 1, words, {flags.get(), ranks});
  for (std::size_t rank = 0; rank < ranks; ++rank)
    if (flags[rank]) heard(static_cast<int>(rank));
  return status;
}

std::vector<NamedExchange> const& exchanges() {
  static std::vector<NamedExchange> const all{
      {"AllGather", gather}, {"AllToAll", to_all}, {"AllReduce", reduce}, {"Word", word}};
  return all;
}

struct SilentRank {
  int world_size;
  int rank;
};

class Silence : public testing::TestWithParam<std::tuple<std::size_t, SilentRank>> {};

TEST_P(Silence, IsATimeoutThatNamesTheRankWithinHalfASecond) {
  auto const [index, silent] = GetParam();
  auto const [world_size, silent_rank] = silent;
  NamedExchange const& named = exchanges()[index];

  run_ranks(
      world_size, [&, world_size = world_size, silent_rank = silent_rank](Transport& transport) {
        if (transport.rank() == silent_rank) return;
        Exchanger exchanger(transport, 1, kDeadline);
        exchange::ExchangeContext& context = exchanger.next(std::size_t{16} * kBytes);
        int num_heard = 0;
        Clock::time_point const start = Clock::now();

        Status const status = named.run(context, [&](int) { ++num_heard; });

        EXPECT_EQ(status.code(), Code::timeout);
        EXPECT_EQ(context.blamed_rank, silent_rank);
        EXPECT_LT(Clock::now() - start, kDeadline + 500ms);
        for (int rank = 0; rank < world_size; ++rank)
          EXPECT_EQ(exchanger.gone()[static_cast<std::size_t>(rank)], rank == silent_rank) << rank;
        if (std::string(named.name) != "AllReduce") {
          EXPECT_EQ(num_heard, world_size - 1) << "the others are still received";
        }
      });
}

INSTANTIATE_TEST_SUITE_P(Exchanges, Silence,
                         testing::Combine(testing::Range(std::size_t{0}, exchanges().size()),
                                          testing::Values(SilentRank{2, 0}, SilentRank{2, 1},
                                                          SilentRank{3, 1}, SilentRank{5, 0},
                                                          SilentRank{5, 4})),
                         [](auto const& instance) {
                           SilentRank const silent = std::get<1>(instance.param);
                           return std::string(exchanges()[std::get<0>(instance.param)].name) + "_" +
                                  std::to_string(silent.world_size) + "_ranks_without_" +
                                  std::to_string(silent.rank);
                         });

TEST(Deadline, ARankThatIsGoneIsNotWaitedForAgain) {
  run_ranks(3, [](Transport& transport) {
    if (transport.rank() == 2) return;
    Exchanger exchanger(transport, 1, kDeadline);
    EXPECT_EQ(gather(exchanger.next(16 * kBytes), [](int) {}).code(), Code::timeout);
    Clock::time_point const start = Clock::now();
    exchange::ExchangeContext& context = exchanger.next(16 * kBytes);
    context.deadline = start + 20s;
    int num_heard = 0;

    Status const status = gather(context, [&](int) { ++num_heard; });

    EXPECT_EQ(status.code(), Code::timeout);
    EXPECT_EQ(context.blamed_rank, 2);
    EXPECT_EQ(num_heard, 2);
    EXPECT_LT(Clock::now() - start, 5s);
  });
}

TEST(Deadline, AnErrorOfReceivedLeavesNoPeerWaiting) {
  run_ranks(4, [](Transport& transport) {
    Exchanger exchanger(transport);
    exchange::ExchangeContext& context = exchanger.next(16 * kBytes);
    std::vector<std::byte> const own(kBytes);
    int calls = 0;
    bool const refuses = transport.rank() == 1;

    Status const status =
        exchange::all_gather(context, own, kBytes, [&](int rank, ConstBytes) -> Status {
          ++calls;
          if (refuses && rank == 2) return {Code::corrupt_payload, "refused"};
          return {};
        });

    EXPECT_EQ(status.code(), refuses ? Code::corrupt_payload : Code::ok);
    EXPECT_EQ(calls, refuses ? 3 : 4);
    if (refuses) {
      EXPECT_EQ(context.blamed_rank, 2);
    }
    EXPECT_EQ(check_all_gather(transport), "");
  });
}

TEST(Deadline, ASumOfUnequalLengthsIsAMismatch) {
  run_ranks(3, [](Transport& transport) {
    Exchanger exchanger(transport, 1, 2s);
    std::vector<float> const own(transport.rank() == 1 ? 90 : 60);
    std::vector<float> result(own.size());
    Status const status = exchange::all_reduce(exchanger.next(1000), std::span<float const>(own),
                                               std::span<float>(result));
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), Code::timeout);
  });
}

}  // namespace
}  // namespace gradsieve::test
