// SPDX-License-Identifier: Apache-2.0
// Promise 3: nothing is lost. Over 200 steps of heavy-tailed gradients that differ by rank and
// index and whose scale varies by 1000, with rolled-back steps, bucket rebuilds and returned mass
// among them, what was sent and what is kept is what was given.
#include <cmath>
#include <limits>
#include <memory>

#include <gtest/gtest.h>

#include "tests/support/hook_rank.hpp"
#include "tests/support/ledger.hpp"
#include "tests/support/plugin_specs.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

constexpr std::uint64_t kSteps = 200;
constexpr int kWorldSize = 4;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// From 1/32 to 32 and back: a factor of 1000.
float scale_of(std::uint64_t step) {
  return static_cast<float>(std::exp2(5.0 * std::sin(0.37 * static_cast<double>(step))));
}

std::vector<float> scaled_gradient(int rank, std::uint64_t step, std::string const& tensor,
                                   std::uint64_t count) {
  std::vector<float> gradient = heavy_tailed_of(rank, step, tensor, count);
  for (float& x : gradient) x *= scale_of(step);
  return gradient;
}

enum class Trouble { none, non_finite, refused };

/// Every eleventh step fails on one rank, every thirteenth is refused by the trainer.
Trouble trouble_of(std::uint64_t step) {
  return step % 11 == 7 ? Trouble::non_finite : step % 13 == 9 ? Trouble::refused : Trouble::none;
}

struct ConservationCase {
  std::string name;
  std::string spec;
  bool own_weight;  ///< see Ledger::expect_balance
};
void PrintTo(ConservationCase const& c, std::ostream* out) { *out << c.spec; }

class HookConservation : public ::testing::TestWithParam<std::tuple<ConservationCase, Rollback>> {
 protected:
  static void run_step(HookRank& rank, std::uint64_t step, Rollback rollback,
                       std::vector<std::unique_ptr<Ledger>>& ledgers) {
    Trouble const trouble = trouble_of(step);
    auto const gradient_of = [&](int r, std::uint64_t s, std::string const& tensor,
                                 std::uint64_t count) {
      std::vector<float> gradient = scaled_gradient(r, s, tensor, count);
      // A gradient that overflowed: under merge its finite elements still count.
      if (trouble == Trouble::non_finite && r == static_cast<int>(step % kWorldSize) &&
          tensor == "t1")
        gradient[3] = kNan;
      return gradient;
    };
    HookRank::Attempt const attempt = rank.attempt(step, gradient_of);
    ASSERT_TRUE(attempt.begun.ok()) << attempt.begun.message();
    ASSERT_TRUE(attempt.result.status.ok()) << attempt.result.status.message();
    ASSERT_EQ(attempt.result.committed, trouble != Trouble::non_finite) << "step " << step;
    ASSERT_EQ(attempt.result.found_nonfinite, trouble == Trouble::non_finite);
    if (trouble == Trouble::refused) {
      ASSERT_TRUE(rank.hook().refuse().ok());
    }
    bool const committed = trouble == Trouble::none;
    for (std::size_t t = 0; t < ledgers.size(); ++t) {
      TensorDesc const& tensor = rank.layout().tensors[t];
      if (committed || rollback == Rollback::merge) {
        std::vector<float> given = gradient_of(rank.rank(), step, tensor.name, tensor.num_elements);
        for (float& x : given) x = std::isfinite(x) ? x : 0.0F;
        ledgers[t]->give(given);
      }
      if (committed && rank.rank() == 0) ledgers[t]->get(rank.result_of(tensor.name));
    }
  }
};

TEST_P(HookConservation, SentAndKeptIsWhatWasGiven) {
  // Not by structured binding: clang 14 captures none.
  auto const& conservation_case = std::get<0>(GetParam());
  Rollback const rollback = std::get<1>(GetParam());
  Layout const apart = one_bucket_each({3000, 700, 64});
  Layout together = all_in_one(apart);
  std::vector<std::unique_ptr<Ledger>> ledgers;
  for (TensorDesc const& tensor : apart.tensors)
    ledgers.push_back(std::make_unique<Ledger>(tensor.num_elements, kWorldSize));

  test::run_ranks(kWorldSize, [&](Transport& transport) {
    HookOptions options = options_for(conservation_case.spec);
    options.rollback = rollback;
    HookRank rank(transport, options, apart);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      if (step % 40 == 25) rank.plan(step % 80 == 25 ? together : apart);
      run_step(rank, step, rollback, ledgers);
      if (HasFatalFailure()) throw std::runtime_error("step " + std::to_string(step));
    }
    // The outcome of the last step is applied by the next begin; an empty step then changes
    // nothing.
    ASSERT_TRUE(rank.hook().begin(kSteps).ok());
    for (std::size_t t = 0; t < ledgers.size(); ++t) {
      ledgers[t]->keep(rank.hook().residual(rank.layout().tensors[t].name));
    }
  });

  for (auto const& ledger : ledgers) {
    ledger->expect_balance(conservation_case.own_weight);
  }
  EXPECT_GT(ledgers[0]->kept_norm(), 0.0) << "a test of conservation needs something that is kept";
}

INSTANTIATE_TEST_SUITE_P(
    Specs, HookConservation,
    ::testing::Combine(
        ::testing::Values(
            ConservationCase{"topk", "topk(density=0.01) ; feedback=residual", true},
            ConservationCase{"topk_int8", "topk(density=0.01) | int8 ; feedback=residual", false},
            ConservationCase{"topk_sign", "topk(density=0.01) | sign ; feedback=residual", false},
            ConservationCase{"blocktopk", "blocktopk(density=0.01, block=8) ; feedback=residual",
                             true},
            ConservationCase{"randomk", "randomk(density=0.01) ; feedback=residual", true},
            ConservationCase{"cltk", "cltk(density=0.01) ; feedback=residual", true},
            ConservationCase{"threshold", "threshold(value=8) ; feedback=residual", true},
            ConservationCase{"int4_two_shot",
                             "int4(block=64) ; feedback=residual ; exchange=two_shot", false},
            ConservationCase{
                "int8_stochastic_two_shot",
                "int8(block=64, rounding=stochastic) ; feedback=residual ; exchange=two_shot",
                false},
            ConservationCase{"sign_gather", "sign(block=64) ; feedback=residual ; exchange=gather",
                             false},
            ConservationCase{"sign_two_shot",
                             "sign(block=64) ; feedback=residual ; exchange=two_shot", false},
            ConservationCase{"bf16_two_shot", "bf16 ; feedback=residual ; exchange=two_shot",
                             false},
            ConservationCase{"int8_zstd", "int8 | zstd ; feedback=residual", false}),
        ::testing::Values(Rollback::merge, Rollback::exact)),
    [](auto const& c) {
      return std::get<0>(c.param).name +
             (std::get<1>(c.param) == Rollback::merge ? "_merge" : "_exact");
    });

// A f32 sparsifier loses not one bit in one step: what is decoded plus what is kept is the sum.
TEST(HookConservationPerStep, IsBitwiseForF32Sparsifiers) {
  for (char const* spec : {"topk(density=0.01)", "blocktopk(density=0.05, block=4)",
                           "randomk(density=0.02)", "threshold(value=2)", "cltk(density=0.03)"}) {
    SCOPED_TRACE(spec);
    test::run_ranks(1, [&](Transport& transport) {
      HookRank rank(transport, options_for(std::string(spec) + " ; feedback=residual"),
                    one_bucket_each({2000}));
      std::vector<float> before(2000, 0.0F);
      for (std::uint64_t step = 0; step < 30; ++step) {
        rank.step(step, scaled_gradient);
        std::vector<float> const given = scaled_gradient(0, step, "t0", 2000);
        std::vector<float> const after = rank.hook().residual("t0");
        for (std::size_t i = 0; i < 2000; ++i) {
          float const corrected = given[i] + before[i];
          ASSERT_EQ(rank.bucket(0)[i] + after[i], corrected)
              << "element " << i << ", step " << step;
          ASSERT_TRUE(after[i] == 0.0F || rank.bucket(0)[i] == 0.0F) << "sent and kept at once";
        }
        before = after;
      }
    });
  }
}

// Stochastic storage: exact in expectation, so the total drifts by less than the noise explains.
TEST(HookConservationPerStep, ABf16ResidualLosesNothingOnAverage) {
  constexpr std::size_t kCount = 4000;
  double drift = 0.0;
  double spread = 0.0;
  test::run_ranks(1, [&](Transport& transport) {
    HookRank rank(transport, options_for("topk(density=0.01) ; feedback=residual(dtype=bf16)"),
                  one_bucket_each({kCount}));
    std::vector<double> balance(kCount, 0.0);
    for (std::uint64_t step = 0; step < 100; ++step) {
      rank.step(step, scaled_gradient);
      std::vector<float> const given = scaled_gradient(0, step, "t0", kCount);
      std::vector<float> const kept = rank.hook().residual("t0");
      for (std::size_t i = 0; i < kCount; ++i) {
        balance[i] += double{given[i]} - double{rank.bucket(0)[i]};
        // One stochastic rounding to 8 bits: a standard deviation of at most half a unit, 2^-8 of
        // it.
        spread += std::pow(0x1p-8 * double{kept[i]}, 2);
      }
    }
    std::vector<float> const kept = rank.hook().residual("t0");
    for (std::size_t i = 0; i < kCount; ++i) drift += balance[i] - double{kept[i]};
  });
  EXPECT_GT(spread, 0.0);
  // A sum of independent errors of mean 0: seven standard deviations, 3e-12.
  EXPECT_LE(std::abs(drift), 7.0 * std::sqrt(spread));
}

TEST(HookConservationPerStep, WithoutFeedbackWhatIsDroppedIsCounted) {
  test::run_ranks(2, [&](Transport& transport) {
    HookRank rank(transport, options_for("topk(density=0.01)"), one_bucket_each({1000}));
    for (std::uint64_t step = 0; step < 6; ++step) {
      rank.step(step);
      std::vector<float> given = heavy_tailed_of(transport.rank(), step, "t0", 1000);
      std::ranges::sort(given, [](float a, float b) { return std::abs(a) > std::abs(b); });
      double dropped = 0.0;
      for (std::size_t i = 10; i < given.size(); ++i)
        dropped += double{given[i]} * double{given[i]};
      // Both sums are in double; only their order differs.
      EXPECT_NEAR(rank.hook().tensor_stats()[0].dropped_norm, std::sqrt(dropped),
                  1e-9 * std::sqrt(dropped));
      EXPECT_EQ(rank.hook().tensor_stats()[0].residual_norm, 0.0);
    }
  });
}

}  // namespace
}  // namespace gradsieve::testing
