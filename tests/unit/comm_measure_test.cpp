// SPDX-License-Identifier: Apache-2.0
// What gradsieve-comm calls wrong: elements, by their bits, over all ranks.
#include <bit>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "bench/comm/measure.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::bench {
namespace {

template <typename T, typename Change>
std::uint64_t wrong_of_three_ranks(std::vector<T> const& result, Change const& change) {
  std::uint64_t found = 0;
  test::run_ranks(3, [&](Transport& transport) {
    std::vector<T> own = result;
    change(transport.rank(), own);
    std::uint64_t const wrong = count_wrong(transport, ConstTensorView(std::span<T const>(own)));
    if (transport.rank() == 2) found = wrong;
  });
  return found;
}

TEST(CountWrong, IsZeroWhereAllHoldTheSameBits) {
  float const nan = std::numeric_limits<float>::quiet_NaN();

  EXPECT_EQ(wrong_of_three_ranks<float>({1.0F, nan, -0.0F}, [](int, auto&) {}), 0u);
  EXPECT_EQ(wrong_of_three_ranks<float>({}, [](int, auto&) {}), 0u);
}

TEST(CountWrong, CountsElementsAndNotRanks) {
  std::vector<float> const result(1000, 0.5F);

  EXPECT_EQ(wrong_of_three_ranks(result,
                                 [](int rank, std::vector<float>& own) {
                                   if (rank != 1) return;
                                   for (std::size_t i : {0u, 7u, 500u, 999u}) own[i] += 1.0F;
                                 }),
            4u);
  EXPECT_EQ(wrong_of_three_ranks(result,
                                 [](int rank, std::vector<float>& own) {
                                   if (rank > 0) own[3] = 0.0F;
                                 }),
            2u)
      << "one element on each of two ranks";
}

TEST(CountWrong, ComparesBitsInTheTypeOfTheResult) {
  std::vector<double> const result(10, 1.0);

  EXPECT_EQ(wrong_of_three_ranks(result,
                                 [](int rank, std::vector<double>& own) {
                                   if (rank == 2) own[9] += std::numeric_limits<double>::epsilon();
                                 }),
            1u)
      << "less than a float shows";
  EXPECT_EQ(wrong_of_three_ranks(std::vector<float>(4, 0.0F),
                                 [](int rank, std::vector<float>& own) {
                                   if (rank == 1) own[0] = -0.0F;
                                 }),
            1u);
}

}  // namespace
}  // namespace gradsieve::bench
