// SPDX-License-Identifier: Apache-2.0
// Promise 1: the same bits on all ranks after every step. And what those bits are: for a gather and
// an all_reduce the definition, computed by one thread without hook or transport.
#include <array>
#include <cmath>

#include <gtest/gtest.h>

#include "tests/distributed/hook_checks.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

struct WorldCase {
  SpecCase spec_case;
  int world_size;
};
void PrintTo(WorldCase const& c, std::ostream* out) {
  *out << c.spec_case << ", " << c.world_size << " ranks";
}

std::vector<WorldCase> world_cases(std::vector<SpecCase> const& specs, int smallest = 1,
                                   int largest = 5) {
  std::vector<WorldCase> cases;
  for (SpecCase const& spec_case : specs) {
    for (int world_size = smallest; world_size <= largest; ++world_size)
      cases.push_back({spec_case, world_size});
  }
  return cases;
}

auto const world_case_name = [](auto const& c) {
  return c.param.spec_case.name + "_" + std::to_string(c.param.world_size) + "_ranks";
};

class HookDefinition : public ::testing::TestWithParam<WorldCase> {};

TEST_P(HookDefinition, AllRanksHoldTheSameBits) {
  test::run_ranks(GetParam().world_size, [](Transport& transport) {
    EXPECT_EQ(check_same_bits(transport, GetParam().spec_case.spec), "")
        << "rank " << transport.rank();
    EXPECT_EQ(check_same_bits(transport, GetParam().spec_case.spec + " ; feedback=residual"), "")
        << "rank " << transport.rank();
  });
}

TEST_P(HookDefinition, TheMeanIsTheWeightedSumOfDecodedPayloadsInRankOrder) {
  test::run_ranks(GetParam().world_size, [](Transport& transport) {
    EXPECT_EQ(check_definition(transport, GetParam().spec_case.spec), "")
        << "rank " << transport.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(Registry, HookDefinition,
                         ::testing::ValuesIn(world_cases(default_specs())), world_case_name);

// Ends of parameters, where three ranks tell as much as five.
class HookParameters : public HookDefinition {};

TEST_P(HookParameters, AllRanksHoldTheSameBitsAndTheyAreTheDefinition) {
  test::run_ranks(3, [](Transport& transport) {
    std::string const& spec = GetParam().spec_case.spec;
    EXPECT_EQ(check_same_bits(transport, spec), "") << "rank " << transport.rank();
    EXPECT_EQ(check_definition(transport, spec), "") << "rank " << transport.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(Registry, HookParameters,
                         ::testing::ValuesIn(world_cases(all_specs(), 3, 3)), world_case_name);

class HookTwoShot : public ::testing::TestWithParam<WorldCase> {};

TEST_P(HookTwoShot, EqualsItsReference) {
  test::run_ranks(GetParam().world_size, [](Transport& transport) {
    EXPECT_EQ(check_two_shot(transport, GetParam().spec_case.spec), "")
        << "rank " << transport.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Registry, HookTwoShot,
    ::testing::ValuesIn(world_cases(
        specs_that([](Chain const& c) { return c.compressor->claims().elementwise; }), 2)),
    world_case_name);

// Nothing that only helps speed may change a bit.
TEST(HookDefinitionVariants, ThreadsBackendAndProgressThreadDoNotChangeABit) {
  for (char const* spec :
       {"topk(density=0.05) | int8 ; feedback=residual", "int8(rounding=stochastic)", "sign"}) {
    std::vector<std::vector<std::uint32_t>> results;
    for (int variant = 0; variant < 5; ++variant) {
      HookOptions options = options_for(spec);
      options.backend = variant == 1 ? Backend::ref : Backend::cpu;
      options.num_threads = variant == 2 ? 3 : 1;
      options.progress_thread = variant != 3;
      Layout layout = one_bucket_each({1000, 37, 0, 5000});
      if (variant == 4) layout = all_in_one(layout);
      std::vector<std::uint32_t> bits;
      test::run_ranks(3, [&](Transport& transport) {
        HookRank rank(transport, options, layout);
        for (std::uint64_t step = 0; step < 7; ++step) rank.step(step);
        if (transport.rank() == 1) bits = bits_of(rank.all_results());
      });
      results.push_back(bits);
    }
    for (std::size_t variant = 1; variant < 4; ++variant)
      EXPECT_EQ(results[variant], results[0]) << spec;
    // State and random numbers hang on the tensor, never on its bucket. (A two-shot cuts shards
    // through the whole parcel, so only its ownership may move with the bucket.)
    if (std::string(spec).starts_with("topk")) {
      EXPECT_EQ(results[4], results[0]) << spec;
    }
  }
}

TEST(HookDefinitionVariants, TwoRanksRoundIndependentlyOnEqualInput) {
  constexpr std::size_t kCount = 20000;
  std::vector<float> gradient(kCount, 0.3F);
  gradient[0] = 127.0F;  // one block, scale 1: 0.3 rounds up with probability 0.3
  std::vector<std::vector<float>> decoded(2);
  for (int keeper = 0; keeper < 2; ++keeper) {
    // With the other rank's gradient at zero, twice the mean is what this rank's payload decodes
    // to.
    test::run_ranks(2, [&](Transport& transport) {
      HookRank rank(transport,
                    options_for("int8(block=65536, rounding=stochastic) ; exchange=gather"),
                    one_bucket_each({kCount}));
      rank.step(0, [&](int r, std::uint64_t, std::string const&, std::uint64_t n) {
        return r == keeper ? gradient : std::vector<float>(n, 0.0F);
      });
      if (transport.rank() == 0) decoded[static_cast<std::size_t>(keeper)] = rank.bucket(0);
    });
  }
  double both = 0.0;
  std::array<double, 2> up = {0.0, 0.0};
  for (std::size_t i = 1; i < kCount; ++i) {
    for (std::size_t r = 0; r < 2; ++r) up[r] += decoded[r][i] > 0.25F ? 1 : 0;
    both += decoded[0][i] > 0.25F && decoded[1][i] > 0.25F ? 1 : 0;
  }
  // Six standard deviations of a binomial count: 2e-9 for each of the three.
  double const n = kCount - 1;
  EXPECT_NEAR(up[0] / n, 0.3, 6 * std::sqrt(0.3 * 0.7 / n));
  EXPECT_NEAR(up[1] / n, 0.3, 6 * std::sqrt(0.3 * 0.7 / n));
  EXPECT_NEAR(both / n, 0.09, 6 * std::sqrt(0.09 * 0.91 / n)) << "0.3 would mean shared noise";
}

TEST(HookDefinitionVariants, RandomSetsAreEqualOnAllRanksAndChangeWithTheStep) {
  constexpr std::size_t kCount = 1000;
  std::vector<std::vector<std::vector<std::size_t>>> sets(4);
  test::run_ranks(4, [&](Transport& transport) {
    HookRank rank(transport, options_for("randomk(density=0.01) ; feedback=residual"),
                  one_bucket_each({kCount}));
    for (std::uint64_t step = 0; step < 20; ++step) {
      std::vector<float> const before = rank.hook().residual("t0");
      rank.step(step);
      std::vector<float> const given = heavy_tailed_of(transport.rank(), step, "t0", kCount);
      std::vector<float> const after = rank.hook().residual("t0");
      std::vector<std::size_t> chosen;
      for (std::size_t i = 0; i < kCount; ++i) {
        if (after[i] != before[i] + given[i]) chosen.push_back(i);
      }
      EXPECT_EQ(chosen.size(), 10u);
      sets[static_cast<std::size_t>(transport.rank())].push_back(chosen);
    }
  });
  for (std::size_t r = 1; r < 4; ++r) EXPECT_EQ(sets[r], sets[0]);
  for (std::size_t step = 1; step < 20; ++step) EXPECT_NE(sets[0][step], sets[0][step - 1]);
}

}  // namespace
}  // namespace gradsieve::testing
