// SPDX-License-Identifier: Apache-2.0
// The hook over MPI: the same checks as on threads, with as many ranks as mpirun started.
#include <gtest/gtest.h>

#include "tests/distributed/hook_checks.hpp"
#include "tests/support/mpi_runner.hpp"

namespace gradsieve::testing {
namespace {

class HookOverMpi : public ::testing::TestWithParam<SpecCase> {};

TEST_P(HookOverMpi, AllRanksHoldTheSameBits) {
  test::run_mpi_rank([](Transport& transport) {
    EXPECT_EQ(check_same_bits(transport, GetParam().spec), "");
    EXPECT_EQ(check_same_bits(transport, GetParam().spec + " ; feedback=residual"), "");
  });
}

TEST_P(HookOverMpi, TheMeanIsTheWeightedSumOfDecodedPayloadsInRankOrder) {
  test::run_mpi_rank(
      [](Transport& transport) { EXPECT_EQ(check_definition(transport, GetParam().spec), ""); });
}

INSTANTIATE_TEST_SUITE_P(Registry, HookOverMpi, ::testing::ValuesIn(default_specs()),
                         [](auto const& c) { return c.param.name; });

class TwoShotOverMpi : public ::testing::TestWithParam<SpecCase> {};

TEST_P(TwoShotOverMpi, EqualsItsReference) {
  test::run_mpi_rank([](Transport& transport) {
    if (transport.world_size() == 1) return;  // one rank sends nothing, so nothing is rounded twice
    EXPECT_EQ(check_two_shot(transport, GetParam().spec), "");
  });
}

INSTANTIATE_TEST_SUITE_P(Registry, TwoShotOverMpi,
                         ::testing::ValuesIn(specs_that([](Chain const& c) {
                           return c.compressor->claims().elementwise;
                         })),
                         [](auto const& c) { return c.param.name; });

}  // namespace
}  // namespace gradsieve::testing
