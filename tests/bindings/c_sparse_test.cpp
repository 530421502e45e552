// SPDX-License-Identifier: Apache-2.0
// Exchanges of given indices, through C.
#include <gtest/gtest.h>

#include "tests/bindings/c_ranks.hpp"

namespace gradsieve::testing {
namespace {

struct Pairs {
  std::vector<std::uint64_t> indices;
  std::vector<float> values;
  friend bool operator==(Pairs const&, Pairs const&) = default;
};

Pairs list_of(gsvSparse_t result, std::uint32_t list) {
  std::uint64_t const* indices = nullptr;
  float const* values = nullptr;
  std::uint64_t count = 0;
  EXPECT_GSV(gsvSparseGet(result, list, &indices, &values, &count));
  return {{indices, indices + count}, {values, values + count}};
}

// Rank 0 repeats an index, rank 2 brings nothing.
Pairs pairs_of(int rank) {
  if (rank == 0) return {{1000, 7, 1000}, {1.0F, 2.0F, 4.0F}};
  if (rank == 1) return {{7, 4'000'000'000}, {8.0F, 16.0F}};
  return {};
}

TEST(CSparseTest, GathersOneListPerRank) {
  std::vector<CommPtr> const comms = make_local_comms(3);
  for_each_rank(3, [&](int rank) {
    Pairs const own = pairs_of(rank);
    gsvSparse_t result = nullptr;
    ASSERT_GSV(gsvSparseAllGather(own.indices.data(), own.values.data(), own.indices.size(),
                                  5'000'000'000, &result, nullptr,
                                  comms[static_cast<std::size_t>(rank)].get(), nullptr));
    SparsePtr const owned(result);

    EXPECT_EQ(list_of(result, 0), (Pairs{{7, 1000}, {2.0F, 5.0F}}));
    EXPECT_EQ(list_of(result, 1), (Pairs{{7, 4'000'000'000}, {8.0F, 16.0F}}));
    EXPECT_EQ(list_of(result, 2), Pairs{});
    std::uint64_t const* indices = nullptr;
    float const* values = nullptr;
    std::uint64_t count = 0;
    EXPECT_EQ(gsvSparseGet(result, 3, &indices, &values, &count), gsvInvalidArgument);
  });
}

TEST(CSparseTest, ReducesWithAWeight) {
  std::vector<CommPtr> const comms = make_local_comms(3);
  for_each_rank(3, [&](int rank) {
    Pairs const own = pairs_of(rank);
    gsvSparse_t result = nullptr;
    ASSERT_GSV(gsvSparseAllReduce(own.indices.data(), own.values.data(), own.indices.size(),
                                  5'000'000'000, 0.5F, &result, nullptr,
                                  comms[static_cast<std::size_t>(rank)].get(), nullptr));
    SparsePtr const owned(result);

    EXPECT_EQ(list_of(result, 0), (Pairs{{7, 1000, 4'000'000'000}, {5.0F, 2.5F, 8.0F}}));
  });
}

TEST(CSparseTest, AnIndexTooLargeIsAnErrorOnAllRanks) {
  std::vector<CommPtr> const comms = make_local_comms(2);
  for_each_rank(2, [&](int rank) {
    std::uint64_t const index = rank == 0 ? 9 : 10;
    float const value = 1.0F;
    gsvSparse_t result = nullptr;

    EXPECT_NE(gsvSparseAllGather(&index, &value, 1, 10, &result, nullptr,
                                 comms[static_cast<std::size_t>(rank)].get(), nullptr),
              gsvSuccess);

    EXPECT_EQ(result, nullptr);
    EXPECT_STRNE(gsvGetLastError(), "");
  });
}

}  // namespace
}  // namespace gradsieve::testing
