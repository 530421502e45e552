// SPDX-License-Identifier: Apache-2.0
// Exchanges of given indices, on ranks that are threads.
#include <array>
#include <bit>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gradsieve/exchange.hpp"

#include "comm/exchange/sparse_message.hpp"
#include "tests/distributed/exchange_checks.hpp"
#include "tests/distributed/faulty_transport.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::test {
namespace {

using Indices = std::vector<std::uint64_t>;
using Values = std::vector<float>;

SparseInput input_of(std::uint64_t num_elements, Indices const& indices, Values const& values) {
  return {num_elements, indices, values};
}

/// A sparse sum on every rank; `input(rank)` gives indices and values.
template <typename Input>
void expect_sum(int world_size, std::uint64_t num_elements, float weight, Input const& input,
                Indices const& indices, Values const& values) {
  run_ranks(world_size, [&](Transport& transport) {
    auto const [own_indices, own_values] = input(transport.rank());
    SparseResult result;
    std::string failure;

    Status const status =
        sparse_all_reduce(transport, input_of(num_elements, own_indices, own_values), weight,
                          result, {.failure = &failure});

    EXPECT_TRUE(status.ok()) << failure;
    EXPECT_EQ(result.indices, indices);
    EXPECT_EQ(result.values, values);
    EXPECT_FALSE(result.dense);
  });
}

using Pair = std::pair<Indices, Values>;

TEST(SparseExchange, SparseC34MergesTheSameIndexOfTwoRanks) {
  auto const input = [](int rank) {
    return rank == 0 ? Pair{{4, 7}, {1, 2}} : Pair{{7, 9}, {10, 20}};
  };
  expect_sum(2, 12, 0.5F, input, {4, 7, 9}, {0.5F, 6.0F, 10.0F});
}

TEST(SparseExchange, SparseC35CombinesRepeatsBeforeSending) {
  auto const input = [](int rank) { return rank == 0 ? Pair{{5, 5, 5, 9}, {1, 2, 3, 4}} : Pair{}; };
  expect_sum(2, 12, 1.0F, input, {5, 9}, {6.0F, 4.0F});

  std::vector<std::byte> message;
  std::uint64_t num_pairs = 0;
  Pair const repeats = input(0);
  ASSERT_TRUE(
      exchange::write_pairs(input_of(12, repeats.first, repeats.second), 0, 0, message, num_pairs)
          .ok());
  EXPECT_EQ(num_pairs, 2);
  EXPECT_EQ(message.size(), exchange::pairs_message_bytes(12, 2));
}

// In f32, (1e8 + 1) − 1e8 = 0 and (1e8 − 1e8) + 1 = 1: only the input's order gives 0.
TEST(SparseExchange, AddsRepeatsInTheOrderOfTheInput) {
  auto const input = [](int) { return Pair{{9, 3, 3, 3, 1}, {5, 1e8F, 1, -1e8F, 4}}; };
  expect_sum(1, 12, 1.0F, input, {1, 3, 9}, {4, 0, 5});
}

TEST(SparseExchange, SparseC36RepeatsAddUpAndNoneIsDropped) {
  auto const input = [](int rank) {
    return rank == 0 ? Pair{{2, 2, 4}, {1.0F, 2.5F, -1.0F}} : Pair{};
  };
  expect_sum(2, 5, 1.0F, input, {2, 4}, {3.5F, -1.0F});

  constexpr std::size_t kPairs = 1'000'000;
  Indices indices(kPairs);
  Values values(kPairs);
  Values sums(100);
  for (std::size_t i = 0; i < kPairs; ++i) {
    indices[i] = (i * 37 + i / 100) % 100;
    values[i] = static_cast<float>(i % 7) - 2.0F;  // sums stay integers below 2^24: exact
    sums[indices[i]] += values[i];
  }
  Indices all(100);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  for (float& sum : sums) sum *= 2.0F;
  expect_sum(
      2, 1'000'000'000, 1.0F,
      [&](int) {
        return Pair{indices, values};
      },
      all, sums);
}

TEST(SparseExchange, SparseC37AnEmptyRankTakesPart) {
  // Row 1 of a 5×2 embedding gradient; the mean of nothing and [2, 4].
  auto const input = [](int rank) { return rank == 0 ? Pair{} : Pair{{2, 3}, {2, 4}}; };
  expect_sum(2, 10, 0.5F, input, {2, 3}, {1.0F, 2.0F});
}

TEST(SparseExchange, AllRanksMayBeEmpty) {
  expect_sum(3, 10, 1.0F, [](int) { return Pair{}; }, {}, {});
  expect_sum(3, 0, 1.0F, [](int) { return Pair{}; }, {}, {});
}

TEST(SparseExchange, SparseC38TheResultIsThereOnEveryRank) {
  auto const input = [](int rank) {
    return Pair{{static_cast<std::uint64_t>(rank), 2}, {static_cast<float>(rank + 1), 10}};
  };
  expect_sum(2, 4, 1.0F, input, {0, 1, 2}, {1, 2, 20});
}

TEST(SparseExchange, SparseC39GathersUnequalCounts) {
  Indices const counts{0, 1, 1000, 17};
  run_ranks(4, [&](Transport& transport) {
    std::uint64_t const own_rank = static_cast<std::uint64_t>(transport.rank());
    Indices indices;
    Values values;
    for (std::uint64_t j = 0; j < counts[own_rank]; ++j) {
      indices.push_back(3 * j + own_rank);
      values.push_back(static_cast<float>(10'000 * own_rank + j));
    }
    std::vector<SparseResult> per_rank;

    ASSERT_TRUE(sparse_all_gather(transport, input_of(5000, indices, values), per_rank).ok());

    ASSERT_EQ(per_rank.size(), 4);
    std::uint64_t total = 0;
    for (std::uint64_t rank = 0; rank < 4; ++rank) {
      ASSERT_EQ(per_rank[rank].indices.size(), counts[rank]);
      for (std::uint64_t j = 0; j < counts[rank]; ++j) {
        ASSERT_EQ(per_rank[rank].indices[j], 3 * j + rank);
        ASSERT_EQ(per_rank[rank].values[j], static_cast<float>(10'000 * rank + j));
      }
      total += counts[rank];
    }
    EXPECT_EQ(total, 1018);
  });
}

// Rank 0 brings 125013 pairs of 12 bytes (1500156 bytes); on its way to rank 1 the announcement is
// changed to 0.
TEST(SparseExchange, SparseC40ADisagreementNamesBothSizesOnBothRanks) {
  constexpr std::uint64_t kPairs = 125'013;
  constexpr std::uint64_t kElements = std::uint64_t{1} << 40;
  std::vector<std::string> failures(3);
  run_ranks(3, [&](Transport& inner) {
    std::size_t const rank = static_cast<std::size_t>(inner.rank());
    FaultyTransport transport(
        inner, [&](int peer, std::uint64_t index, std::vector<std::byte>& bytes) {
          bool const announcement = index < 2;  // the first message to each of the two others
          if (rank == 0 && peer == 1 && announcement)
            wire::store<std::uint64_t>(bytes.data() + wire::kHeaderBytes, 0);
        });
    Indices indices(rank == 0 ? kPairs : 0);
    for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = 7 * i;
    Values const values(indices.size(), 1.0F);
    SparseResult result;

    Status const status =
        sparse_all_reduce(transport, input_of(kElements, indices, values), 1.0F, result,
                          {.deadline = std::chrono::seconds(20), .failure = &failures[rank]});

    EXPECT_EQ(status.code(), rank == 2 ? Code::peer_failed : Code::mismatch) << failures[rank];
  });
  for (std::size_t const rank : {0U, 1U}) {
    EXPECT_NE(failures[rank].find("rank 0 sends 125013 pairs (1500156 bytes)"), std::string::npos)
        << failures[rank];
    EXPECT_NE(failures[rank].find("rank 1 expects 0 pairs (0 bytes)"), std::string::npos)
        << failures[rank];
  }
}

TEST(SparseExchange, RanksWithDifferentSpacesAreToldSo) {
  run_ranks(2, [](Transport& transport) {
    SparseResult result;
    std::string failure;
    std::uint64_t const num_elements = transport.rank() == 0 ? 12 : 13;
    Status const status = sparse_all_reduce(transport, input_of(num_elements, {}, {}), 1.0F, result,
                                            {.failure = &failure});
    EXPECT_EQ(status.code(), Code::mismatch);
    EXPECT_NE(failure.find("12"), std::string::npos) << failure;
    EXPECT_NE(failure.find("13"), std::string::npos) << failure;
  });
}

TEST(SparseExchange, ABadInputOfOneRankEndsTheExchangeOnAll) {
  run_ranks(3, [](Transport& transport) {
    bool const bad = transport.rank() == 1;
    Indices const indices{bad ? std::uint64_t{12} : 3};
    Values const values{1.0F};
    SparseResult result;
    std::string failure;
    Status const status = sparse_all_reduce(transport, input_of(12, indices, values), 1.0F, result,
                                            {.failure = &failure});
    EXPECT_EQ(status.code(), bad ? Code::invalid_argument : Code::peer_failed);
    if (!bad) {
      EXPECT_NE(failure.find("rank 1"), std::string::npos) << failure;
    }
  });
}

TEST(SparseExchange, ASilentRankIsATimeoutThatNamesIt) {
  run_ranks(3, [](Transport& transport) {
    if (transport.rank() == 1) return;
    Clock::time_point const start = Clock::now();
    SparseResult result;
    std::string failure;
    Status const status =
        sparse_all_reduce(transport, input_of(12, {}, {}), 1.0F, result,
                          {.deadline = std::chrono::milliseconds(200), .failure = &failure});
    EXPECT_EQ(status.code(), Code::timeout);
    EXPECT_NE(failure.find("rank 1"), std::string::npos) << failure;
    EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(200 + 1500));
  });
}

// 8 bytes per pair against 4 per element: 600 of 1000 go densely, 500 are the break-even.
TEST(SparseExchange, RatioC82SwitchesToDenseWhereThatIsCheaper) {
  for (std::uint64_t const num_pairs : {499U, 500U, 501U, 600U}) {
    run_ranks(2, [&](Transport& transport) {
      Indices indices;
      Values values;
      for (std::uint64_t i = 0; i < num_pairs; ++i) {
        indices.push_back(i);
        values.push_back(static_cast<float>(rank_value(transport.rank(), i)));
      }
      std::uint64_t const before = transport.counters().bytes_sent;
      SparseResult result;
      ASSERT_TRUE(sparse_all_reduce(transport, input_of(1000, indices, values), 0.5F, result).ok());

      EXPECT_EQ(result.dense, num_pairs > 500) << num_pairs;
      ASSERT_EQ(result.indices.size(), result.dense ? 1000 : num_pairs);
      for (std::uint64_t i = 0; i < result.indices.size(); ++i) {
        ASSERT_EQ(result.indices[i], i);
        float const expected =
            i < num_pairs ? 0.5F * static_cast<float>(i) + 0.5F * static_cast<float>(1000 + i)
                          : 0.0F;
        ASSERT_EQ(result.values[i], expected);
      }
      std::uint64_t const agreement_bytes = 72 + 80 + 8;
      std::uint64_t const expected_bytes =
          agreement_bytes + (result.dense ? 4000 : 72 + 8 * num_pairs);
      EXPECT_EQ(transport.counters().bytes_sent - before, expected_bytes);
    });
  }
}

TEST(SparseExchange, DenseAndSparseGiveTheSameBitsForNegativeZero) {
  for (std::uint64_t const num_elements : {2U, 100U}) {
    run_ranks(2, [&](Transport& transport) {
      SparseResult result;
      Indices const indices{0, 1};
      Values const values{-0.0F, -0.0F};
      ASSERT_TRUE(
          sparse_all_reduce(transport, input_of(num_elements, indices, values), 1.0F, result).ok());
      EXPECT_EQ(result.dense, num_elements == 2);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(result.values[0]), 0);
    });
  }
}

TEST(SparseExchange, BigcountC46IndicesBeyond32BitsStayWhole) {
  std::array<std::uint64_t, 2> const sizes{3'000'000, 1024};
  std::uint64_t const num_elements = flat_num_elements(sizes);
  std::uint64_t const flat = std::uint64_t{2'500'000} * 1024 + 5;
  EXPECT_EQ(flat, 2'560'000'005);
  expect_sum(2, num_elements, 1.0F,
             [&](int rank) {
               return Pair{{flat}, {static_cast<float>(rank + 1)}};
             },
             {flat}, {3.0F});
  std::uint64_t const huge = (std::uint64_t{1} << 62) + 3;
  expect_sum(2, huge + 1, 1.0F,
             [&](int) {
               return Pair{{huge, 1}, {1, 2}};
             },
             {1, huge}, {4.0F, 2.0F});

  std::array<std::uint64_t, 4> const too_many{70'000, 70'000, 70'000, 70'000};
  EXPECT_THROW(static_cast<void>(flat_num_elements(too_many)), Error);
  std::array<std::uint64_t, 3> const empty{70'000, 0, ~std::uint64_t{0}};
  EXPECT_EQ(flat_num_elements(empty), 0);
}

TEST(SparseExchange, EqualsADenseSumOnEveryWorldSize) {
  for (int world_size = 1; world_size <= 5; ++world_size)
    run_ranks(world_size, [](Transport& transport) { EXPECT_EQ(check_sparse_sum(transport), ""); });
}

TEST(SparseMessage, RejectsEveryTruncatedOrDamagedMessage) {
  Indices const indices{3, 9, 10};
  Values const values{1, 2, 3};
  std::vector<std::byte> message;
  std::uint64_t num_pairs = 0;
  ASSERT_TRUE(exchange::write_pairs(input_of(11, indices, values), 2, 5, message, num_pairs).ok());
  auto const read = [](ConstBytes bytes, int rank, std::uint32_t tag, std::uint64_t num_elements) {
    exchange::Pairs pairs;
    return exchange::read_pairs(bytes, rank, tag, num_elements, 3, pairs).code();
  };
  ASSERT_EQ(read(message, 2, 5, 11), Code::ok);
  EXPECT_EQ(read(message, 1, 5, 11), Code::corrupt_payload);
  EXPECT_EQ(read(message, 2, 6, 11), Code::corrupt_payload);
  EXPECT_EQ(read(message, 2, 5, 12), Code::corrupt_payload);
  for (std::size_t length = 0; length < message.size(); ++length)
    EXPECT_EQ(read(ConstBytes(message).first(length), 2, 5, 11), Code::corrupt_payload) << length;

  struct Damage {
    std::size_t place;
    std::uint32_t index;
  };
  for (Damage const damage : {Damage{0, 9}, {0, 11}, {1, 3}, {2, 11}, {2, 0xffffffffU}}) {
    std::vector<std::byte> damaged = message;
    wire::store(damaged.data() + wire::kHeaderBytes + 8 + 4 * damage.place, damage.index);
    EXPECT_EQ(read(damaged, 2, 5, 11), Code::corrupt_payload)
        << damage.place << ' ' << damage.index;
  }
  wire::store<std::uint64_t>(message.data() + wire::kHeaderBytes, 4);
  EXPECT_EQ(read(message, 2, 5, 11), Code::corrupt_payload);
}

}  // namespace
}  // namespace gradsieve::test
