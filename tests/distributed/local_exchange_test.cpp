// SPDX-License-Identifier: Apache-2.0
// Every check of exchange_checks.hpp on ranks that are threads, 1 to 5 of them.
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/distributed/exchange_checks.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::test {
namespace {

class LocalExchange : public testing::TestWithParam<std::tuple<std::size_t, int>> {};

TEST_P(LocalExchange, HoldsOnEveryRank) {
  auto const [index, world_size] = GetParam();
  NamedCheck const& check = exchange_checks()[index];

  run_ranks(world_size, [&](Transport& transport) {
    EXPECT_EQ(check.run(transport), "") << "rank " << transport.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(Checks, LocalExchange,
                         testing::Combine(testing::Range(std::size_t{0}, exchange_checks().size()),
                                          testing::Range(1, 6)),
                         [](auto const& instance) {
                           return std::string(exchange_checks()[std::get<0>(instance.param)].name) +
                                  "_" + std::to_string(std::get<1>(instance.param)) + "_ranks";
                         });

// More ranks than kGatherWindow, so that slots are used again.
TEST(LocalExchangeBeyondTheWindow, HoldsOnEveryRank) {
  run_ranks(2 * exchange::kGatherWindow + 3, [](Transport& transport) {
    EXPECT_EQ(check_all_gather(transport), "");
    EXPECT_EQ(check_all_to_all(transport), "");
    EXPECT_EQ(check_all_reduce_f32(transport), "");
  });
}

TEST(LocalExchangeRepeated, HoldsManyTimesInARow) {
  run_ranks(4, [](Transport& transport) {
    for (int i = 0; i < 50; ++i) {
      ASSERT_EQ(check_all_gather_of_unequal_sizes(transport), "");
      ASSERT_EQ(check_all_reduce_adds_in_rank_order(transport), "");
    }
  });
}

}  // namespace
}  // namespace gradsieve::test
