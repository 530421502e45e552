// SPDX-License-Identifier: Apache-2.0
// Promise 4: a step is a transaction. What happens to state when a step fails, is rolled back or is
// refused, in both modes.
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kWorldSize = 3;

/// heavy_tailed_of, with one bad element on one rank in one step.
GradientOf with_bad_element(int bad_rank, std::uint64_t bad_step, float bad,
                            std::string bad_tensor = "t0") {
  return [=](int rank, std::uint64_t step, std::string const& tensor, std::uint64_t count) {
    std::vector<float> gradient = heavy_tailed_of(rank, step, tensor, count);
    if (rank == bad_rank && step == bad_step && tensor == bad_tensor) gradient[count / 2] = bad;
    return gradient;
  };
}

std::vector<std::vector<std::uint32_t>> residual_bits(HookRank const& rank) {
  std::vector<std::vector<std::uint32_t>> bits;
  for (auto const& residual : rank.all_residuals()) bits.push_back(bits_of(residual));
  return bits;
}

class HookTransaction : public ::testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] HookOptions options(Rollback rollback,
                                    OnNonFinite on_nonfinite = OnNonFinite::propagate) const {
    HookOptions options = options_for(GetParam());
    options.rollback = rollback;
    options.on_nonfinite = on_nonfinite;
    return options;
  }
  [[nodiscard]] static Layout layout() { return one_bucket_each({2000, 300}); }
};

TEST_P(HookTransaction, ARefusedStepLeavesStateBitForBitUnderExact) {
  test::run_ranks(kWorldSize, [&](Transport& transport) {
    HookRank rank(transport, options(Rollback::exact), layout());
    HookRank other(transport, options(Rollback::exact), layout());  // never sees the refused step
    for (std::uint64_t step = 0; step < 12; ++step) {
      bool const is_refused = step == 4 || step == 5 || step == 9;
      auto const before = residual_bits(rank);
      rank.step(step);
      if (!is_refused) {
        other.step(step);
        EXPECT_EQ(bits_of(rank.all_results()), bits_of(other.all_results())) << "step " << step;
        continue;
      }
      ASSERT_TRUE(rank.hook().refuse().ok());
      rank.after_begin = [&, before] { EXPECT_EQ(residual_bits(rank), before) << "step " << step; };
    }
    EXPECT_EQ(residual_bits(rank), residual_bits(other));
  });
}

TEST_P(HookTransaction, TheSameGradientMayComeAgainUnderExact) {
  test::run_ranks(kWorldSize, [&](Transport& transport) {
    HookRank rank(transport, options(Rollback::exact), layout());
    for (std::uint64_t step = 0; step < 8; ++step) {
      rank.step(step);
      auto const first = bits_of(rank.all_results());
      auto const first_state = residual_bits(rank);
      ASSERT_TRUE(rank.hook().refuse().ok());
      rank.step(step);
      EXPECT_EQ(bits_of(rank.all_results()), first) << "step " << step;
      EXPECT_EQ(residual_bits(rank), first_state) << "step " << step;
    }
  });
}

TEST_P(HookTransaction, ARefusedStepsGradientWaitsInTheResidualUnderMerge) {
  test::run_ranks(kWorldSize, [&](Transport& transport) {
    HookRank rank(transport, options(Rollback::merge), layout());
    for (std::uint64_t step = 0; step < 12; ++step) {
      std::vector<float> const before = rank.hook().residual("t0");
      rank.step(step);
      if (step % 4 != 2) continue;

      ASSERT_TRUE(rank.hook().refuse().ok());
      rank.after_begin = [&, before, step] {
        std::vector<float> const after = rank.hook().residual("t0");
        std::vector<float> const given = heavy_tailed_of(transport.rank(), step, "t0", 2000);
        float largest = 0.0F;
        for (std::size_t i = 0; i < given.size(); ++i)
          largest = std::max(largest, std::abs(given[i]) + std::abs(before[i]));
        for (std::size_t i = 0; i < given.size(); ++i) {
          // (c − ĉ) + ĉ: two roundings, each of a number not above the largest of the block.
          ASSERT_NEAR(after[i], double{given[i]} + double{before[i]}, 0x1p-22 * double{largest})
              << "element " << i << ", step " << step;
        }
      };
    }
  });
}

TEST_P(HookTransaction, ANonFiniteElementIsSeenOnAllRanksAndTheStepIsRolledBack) {
  for (float const bad : {kNan, kInfinity, -kInfinity}) {
    for (Rollback const rollback : {Rollback::exact, Rollback::merge}) {
      test::run_ranks(kWorldSize, [&](Transport& transport) {
        HookRank rank(transport, options(rollback), layout());
        GradientOf const gradient_of = with_bad_element(1, 3, bad);
        for (std::uint64_t step = 0; step < 3; ++step) rank.step(step, gradient_of);
        auto const before = residual_bits(rank);

        HookRank::Attempt const attempt = rank.attempt(3, gradient_of);

        ASSERT_TRUE(attempt.result.status.ok()) << attempt.result.status.message();
        EXPECT_TRUE(attempt.result.found_nonfinite);
        EXPECT_FALSE(attempt.result.committed);
        for (std::uint32_t const bits : bits_of(rank.bucket(0)))
          ASSERT_EQ(bits, 0x7fc00000u) << "canonical NaN";
        for (float const x : rank.bucket(1))
          ASSERT_TRUE(std::isfinite(x)) << "an unaffected bucket";
        rank.after_begin = [&] {
          if (rollback == Rollback::exact) {
            EXPECT_EQ(residual_bits(rank), before);
          }
          for (auto const& residual : rank.all_residuals()) {
            for (float const x : residual) ASSERT_TRUE(std::isfinite(x));
          }
        };
        for (std::uint64_t step = 4; step < 9; ++step) rank.step(step, gradient_of);
      });
    }
  }
}

TEST_P(HookTransaction, SkipGivesZerosInPlaceOfNan) {
  test::run_ranks(kWorldSize, [&](Transport& transport) {
    HookRank rank(transport, options(Rollback::exact, OnNonFinite::skip), layout());
    GradientOf const gradient_of = with_bad_element(2, 2, kInfinity);
    rank.step(0, gradient_of);
    rank.step(1, gradient_of);

    HookRank::Attempt const attempt = rank.attempt(2, gradient_of);

    EXPECT_TRUE(attempt.result.found_nonfinite);
    EXPECT_FALSE(attempt.result.committed);
    for (float const x : rank.bucket(0)) ASSERT_EQ(x, 0.0F);
    rank.step(3, gradient_of);
  });
}

// What one chain saw makes the whole bucket NaN, in every type: a loss scaler looks at buckets.
TEST(HookNonFinite, CoversTheTensorsOfTheBucketThatAnotherChainCarries) {
  struct Nan {
    DType dtype;
    std::uint64_t bits;
  };
  for (Nan const nan :
       {Nan{DType::f32, 0x7fc00000}, Nan{DType::f16, 0x7e00}, Nan{DType::bf16, 0x7fc0}}) {
    for (std::string const bad : {"t0", "t1", "t2"}) {
      for (OnNonFinite const answer : {OnNonFinite::propagate, OnNonFinite::skip}) {
        test::run_ranks(kWorldSize, [&](Transport& transport) {
          Layout layout = all_in_one(one_bucket_each({40, 300, 7}, nan.dtype));
          HookOptions options = options_for("none");
          options.rules = {{"t0", "none"},
                           {"t1", "topk(density=0.1) ; feedback=residual"},
                           {"*", "int8(block=8) ; feedback=residual"}};
          options.on_nonfinite = answer;
          Hook hook(transport, options);
          hook.plan(layout.tensors, layout.buckets);
          std::vector<std::byte> bucket(347 * size_of(nan.dtype));
          std::size_t const bad_element = bad == "t0" ? 3 : bad == "t1" ? 100 : 345;
          for (std::uint64_t step = 0; step < 7; ++step) {
            std::ranges::fill(bucket,
                              std::byte{static_cast<unsigned char>(0x21 + transport.rank())});
            bool const is_bad = step == 2 || step == 5;
            if (is_bad && transport.rank() == static_cast<int>(step) % kWorldSize)
              std::memset(bucket.data() + bad_element * size_of(nan.dtype), 0xff,
                          size_of(nan.dtype));
            ASSERT_TRUE(hook.begin(step).ok());
            Event event;
            ASSERT_TRUE(hook.reduce(0, TensorView(bucket.data(), 347, nan.dtype), event).ok());
            ASSERT_TRUE(hook.wait(event).ok());
            StepResult const result = hook.finish();

            ASSERT_EQ(result.found_nonfinite, is_bad) << bad << ", step " << step;
            if (!is_bad) continue;
            std::uint64_t const expected = answer == OnNonFinite::propagate ? nan.bits : 0;
            for (std::size_t i = 0; i < 347; ++i) {
              std::uint64_t bits = 0;
              std::memcpy(&bits, bucket.data() + i * size_of(nan.dtype), size_of(nan.dtype));
              ASSERT_EQ(bits, expected) << "element " << i << ", bad in " << bad;
            }
          }
        });
      }
    }
  }
}

// A rank that fails still takes part: all ranks learn of it in the same step and nobody hangs.
TEST_P(HookTransaction, AFailingRankIsNamedOnEveryRank) {
  for (Rollback const rollback : {Rollback::exact, Rollback::merge}) {
    test::run_ranks(kWorldSize, [&](Transport& transport) {
      HookRank rank(transport, options(rollback, OnNonFinite::error), layout());
      GradientOf const gradient_of = with_bad_element(1, 3, kNan, "t1");
      for (std::uint64_t step = 0; step < 3; ++step) rank.step(step, gradient_of);
      auto const before = residual_bits(rank);

      HookRank::Attempt const attempt = rank.attempt(3, gradient_of);

      EXPECT_FALSE(attempt.reduced.ok());
      EXPECT_FALSE(attempt.result.committed);
      Failure const failure = rank.hook().failure();
      EXPECT_EQ(failure.rank, 1);
      EXPECT_EQ(failure.tensor, "t1");
      EXPECT_FALSE(failure.message.empty());
      if (transport.rank() == 1) {
        EXPECT_EQ(failure.code, Code::non_finite);
      } else {
        EXPECT_TRUE(failure.code == Code::peer_failed || failure.code == Code::non_finite)
            << code_name(failure.code);
      }
      rank.after_begin = [&] {
        if (rollback == Rollback::exact) {
          EXPECT_EQ(residual_bits(rank), before);
        }
      };
      for (std::uint64_t step = 4; step < 9; ++step) rank.step(step, gradient_of);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Specs, HookTransaction,
    ::testing::Values("topk(density=0.01) ; feedback=residual",
                      "topk(density=0.02) | int8 ; feedback=residual",
                      "int8 ; feedback=residual ; exchange=two_shot",
                      "int4(rounding=stochastic) ; feedback=residual ; exchange=gather",
                      "randomk(density=0.05) ; feedback=residual",
                      "cltk(density=0.05) ; feedback=residual", "sign ; feedback=residual"),
    [](auto const& c) {
      std::string name;
      for (char const letter : c.param.substr(0, c.param.find(" ; feedback"))) {
        name += std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
      }
      return name + (c.param.ends_with("two_shot") ? "_two_shot" : "");
    });

// Two ranks that answer differently to a committed step are found by the next headers.
TEST(HookRefuse, ByOneRankAloneIsAnErrorOfTheNextStep) {
  test::run_ranks(2, [](Transport& transport) {
    HookOptions options = options_for("topk(density=0.01) ; feedback=residual");
    options.exchange_deadline = std::chrono::seconds(3);
    options.vote_deadline = std::chrono::seconds(6);
    HookRank rank(transport, options, one_bucket_each({500}));
    for (std::uint64_t step = 0; step < 3; ++step) rank.step(step);
    if (transport.rank() == 1) {
      ASSERT_TRUE(rank.hook().refuse().ok());
    }

    HookRank::Attempt const attempt = rank.attempt(3, heavy_tailed_of);

    EXPECT_FALSE(attempt.result.committed) << "one rank has state of step 2, the other has not";
    EXPECT_EQ(rank.hook().failure().code, Code::mismatch);
  });
}

TEST(HookOrder, CallsOutOfOrderAreAnswered) {
  test::run_ranks(1, [](Transport& transport) {
    HookRank rank(transport, options_for("topk(density=0.5) ; feedback=residual"),
                  one_bucket_each({8}));
    Event event;
    EXPECT_EQ(rank.hook().reduce(0, TensorView(std::span<float>(rank.bucket(0))), event).code(),
              Code::invalid_usage);
    EXPECT_EQ(rank.hook().refuse().code(), Code::invalid_usage) << "nothing was committed";
    ASSERT_TRUE(rank.hook().begin(5).ok());
    EXPECT_EQ(rank.hook().reduce(1, TensorView(std::span<float>(rank.bucket(0))), event).code(),
              Code::invalid_argument);
    std::vector<float> shorter(7);
    EXPECT_EQ(rank.hook().reduce(0, TensorView(std::span<float>(shorter)), event).code(),
              Code::invalid_argument);
    std::vector<double> wider(8);
    EXPECT_EQ(rank.hook().reduce(0, TensorView(std::span<double>(wider)), event).code(),
              Code::invalid_argument);
  });
}

// The refused call has used no tags, planned no rules and applied no outcome: the rank calls again
// and is where the others are.
TEST(HookOrder, ARankWhoseLossScaleIsRefusedMayCallAgain) {
  test::run_ranks(kWorldSize, [](Transport& transport) {
    HookOptions const options = options_for("topk(density=0.05) ; feedback=residual");
    HookRank rank(transport, options, one_bucket_each({500, 60}));
    HookRank other(transport, options, one_bucket_each({500, 60}));  // never refused
    for (HookRank* const each : {&rank, &other})
      each->hook().set_rules({{.match = "*", .spec = "int8 ; feedback=residual"}}, 5);
    for (std::uint64_t step = 0; step < 8; ++step) {
      if (transport.rank() == 1) {
        auto const before = residual_bits(rank);
        for (float const wrong : {0.0F, -1.0F, kNan, kInfinity})
          EXPECT_EQ(rank.hook().begin(step, wrong).code(), Code::invalid_argument) << wrong;
        EXPECT_EQ(residual_bits(rank), before);
      }
      rank.step(step);
      other.step(step);
      EXPECT_EQ(bits_of(rank.all_results()), bits_of(other.all_results())) << "step " << step;
      if (step != 2 && step != 4) continue;
      for (HookRank* const each : {&rank, &other}) ASSERT_TRUE(each->hook().refuse().ok());
    }
    EXPECT_EQ(residual_bits(rank), residual_bits(other));
  });
}

}  // namespace
}  // namespace gradsieve::testing
