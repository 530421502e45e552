// SPDX-License-Identifier: Apache-2.0
// Cases of error feedback (C-22 to C-27) and of loss scaling (C-63 to C-65) as a trainer meets
// them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>

#include <gtest/gtest.h>

#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

GradientOf always(std::vector<float> gradient) {
  return [=](int, std::uint64_t, std::string const&, std::uint64_t) { return gradient; };
}

TEST(Feedback, EfC22SignKeepsItsError) {
  test::run_ranks(1, [](Transport& transport) {
    HookRank rank(transport, options_for("sign ; feedback=residual ; exchange=gather"),
                  one_bucket_each({3}));
    std::vector<std::vector<float>> const sent = {{0.4F, -0.4F, 0.4F},
                                                  {0.6667F, 0.6667F, -0.6667F}};
    std::vector<std::vector<float>> const kept = {{0.6F, 0.3F, -0.3F},
                                                  {0.9333F, -0.4667F, 0.4667F}};
    for (std::uint64_t step = 0; step < 2; ++step) {
      rank.step(step, always({1.0F, -0.1F, 0.1F}));
      std::vector<float> const residual = rank.hook().residual("t0");
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(rank.bucket(0)[i], sent[step][i], 5e-5) << "the case gives four digits";
        EXPECT_NEAR(residual[i], kept[step][i], 5e-5);
      }
    }
  });
}

// Momentum sits in the optimizer alone: with everything sent, compression changes no trajectory.
TEST(Feedback, EfC23MomentumIsAppliedOnce) {
  test::run_ranks(1, [](Transport& transport) {
    HookRank rank(transport, options_for("topk(density=1) ; feedback=residual"),
                  one_bucket_each({1}));
    double weight = 0.0;
    double momentum = 0.0;
    for (std::uint64_t step = 0; step < 3; ++step) {
      rank.step(step, always({1.0F}));
      momentum = 0.9 * momentum + rank.bucket(0)[0];
      weight -= 0.1 * momentum;
    }
    EXPECT_NEAR(weight, -0.561, 1e-12) << "-0.903 would be momentum twice";
  });
}

TEST(Feedback, EfC25DensityRampTakesEffectAtEachStepAndLosesNothing) {
  test::run_ranks(1, [](Transport& transport) {
    std::string const spec =
        "topk(density=0.00390625, warmup_steps=3, warmup_density=0.25) ; feedback=residual";
    HookRank rank(transport, options_for(spec), one_bucket_each({4096}));
    std::vector<float> before(4096, 0.0F);
    std::vector<std::uint64_t> const expected = {1024, 256, 64, 16, 16, 16};
    for (std::uint64_t step = 0; step < expected.size(); ++step) {
      rank.step(step);
      EXPECT_EQ(rank.hook().tensor_stats()[0].kept_elements, expected[step]) << "step " << step;
      std::vector<float> const given = heavy_tailed_of(0, step, "t0", 4096);
      std::vector<float> const after = rank.hook().residual("t0");
      for (std::size_t i = 0; i < 4096; ++i)
        ASSERT_EQ(rank.bucket(0)[i] + after[i], given[i] + before[i]);
      before = after;
    }
  });
}

TEST(Feedback, EfC26ABf16GradientAddsToAnF32Residual) {
  test::run_ranks(1, [](Transport& transport) {
    Layout const layout = one_bucket_each({2}, DType::bf16);
    Hook hook(transport, options_for("topk(density=0.5) ; feedback=residual"));
    hook.plan(layout.tensors, layout.buckets);
    // The first element is always larger and travels; the second waits: 1.0, then a thousand 0.001.
    auto const bf16 = [](float x) {
      auto const bits = std::bit_cast<std::uint32_t>(x);
      return BFloat16{static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
    };
    double expected = 0.0;
    for (std::uint64_t step = 0; step <= 1000; ++step) {
      std::vector<BFloat16> gradient = {bf16(100.0F), bf16(step == 0 ? 1.0F : 0.001F)};
      expected += std::bit_cast<float>(std::uint32_t{gradient[1].bits} << 16);
      ASSERT_TRUE(hook.begin(step).ok());
      Event event;
      ASSERT_TRUE(hook.reduce(0, TensorView(std::span<BFloat16>(gradient)), event).ok());
      ASSERT_TRUE(hook.wait(event).ok());
      ASSERT_TRUE(hook.finish().committed);
    }
    float const kept = hook.residual("t0")[1];
    EXPECT_NEAR(kept, expected, 1000 * 0x1p-24 * 2.0) << "one rounding a step";
    EXPECT_NEAR(kept, 2.0, 1.5e-3) << "0.001 in bf16 is 0.00099945; bf16 storage would stay at 1.0";
  });
}

TEST(Feedback, EfC27AllRanksLeaveTheDensePhaseAtTheSameStepAlsoAfterAResume) {
  std::string const spec = "topk(density=0.01, warmup_steps=5) ; feedback=residual";
  std::vector<std::string> const paths = {::testing::TempDir() + "dense_phase_0",
                                          ::testing::TempDir() + "dense_phase_1"};
  std::vector<std::vector<std::uint64_t>> kept(2);
  std::vector<std::vector<float>> dense(2);
  auto const run = [&](std::uint64_t begin, std::uint64_t end, bool resume) {
    test::run_ranks(2, [&](Transport& transport) {
      auto const me = static_cast<std::size_t>(transport.rank());
      HookRank rank(transport, options_for(spec), one_bucket_each({1000}));
      if (resume) rank.hook().import_state(std::span(&paths[me], 1));
      for (std::uint64_t step = begin; step < end; ++step) {
        rank.step(step);
        kept[me].push_back(rank.hook().tensor_stats()[0].kept_elements);
        if (step == 0) dense[me] = rank.bucket(0);
      }
      rank.hook().export_state(paths[me]);
    });
  };
  run(0, 8, false);
  auto const uninterrupted = kept;
  kept = {{}, {}};
  run(0, 4, false);
  run(4, 8, true);

  EXPECT_EQ(kept, uninterrupted);
  EXPECT_EQ(kept[0], kept[1]);
  EXPECT_EQ(kept[0][0], 1000u) << "the ramp begins dense";
  for (std::size_t step = 5; step < 8; ++step) EXPECT_EQ(kept[0][step], 10u) << "step " << step;
  for (std::size_t step = 1; step < 6; ++step) EXPECT_LE(kept[0][step], kept[0][step - 1]);
  std::vector<float> const a = heavy_tailed_of(0, 0, "t0", 1000);
  std::vector<float> const b = heavy_tailed_of(1, 0, "t0", 1000);
  for (std::size_t i = 0; i < 1000; ++i)
    ASSERT_EQ(dense[0][i], 0.5F * a[i] + 0.5F * b[i]) << "uncompressed";
  for (std::string const& path : paths) std::remove(path.c_str());
}

TEST(Feedback, DecayMultipliesWhatWaits) {
  test::run_ranks(1, [](Transport& transport) {
    HookRank rank(transport, options_for("topk(density=0.5) ; feedback=residual(decay=0.5)"),
                  one_bucket_each({2}));
    std::vector<float> const expected = {1.0F, 1.5F, 1.75F, 1.875F, 1.9375F, 1.96875F};
    for (std::uint64_t step = 0; step < expected.size(); ++step) {
      rank.step(step, always({8.0F, 1.0F}));
      EXPECT_EQ(rank.hook().residual("t0")[1], expected[step]);
    }
  });
}

class LossScale : public ::testing::TestWithParam<std::string> {};

TEST_P(LossScale, AmpC63AWindowWithAnInfinityLeavesNoTrace) {
  auto const window = [](int rank, std::uint64_t step, std::string const& tensor,
                         std::uint64_t count, bool overflow) {
    std::vector<float> sum(count, 0.0F);
    for (std::uint64_t micro = 0; micro < 4; ++micro) {
      std::vector<float> part = heavy_tailed_of(rank, 4 * step + micro, tensor, count);
      if (overflow && micro == 1 && rank == 1) part[7] = kInfinity;
      for (std::size_t i = 0; i < count; ++i) sum[i] += part[i];
    }
    return sum;
  };
  test::run_ranks(2, [&](Transport& transport) {
    HookOptions options = options_for(GetParam());
    options.rollback = Rollback::exact;
    HookRank rank(transport, options, one_bucket_each({600}));
    HookRank reference(transport, options, one_bucket_each({600}));
    for (std::uint64_t step = 0; step < 10; ++step) {
      bool const overflow = step == 3 || step == 6;
      GradientOf const gradient_of = [&](int r, std::uint64_t s, std::string const& t,
                                         std::uint64_t n) { return window(r, s, t, n, overflow); };
      if (overflow) {
        HookRank::Attempt const attempt = rank.attempt(step, gradient_of);
        EXPECT_TRUE(attempt.result.found_nonfinite);
        EXPECT_FALSE(attempt.result.committed);
        continue;
      }
      rank.step(step, gradient_of);
      reference.step(step, gradient_of);
      EXPECT_EQ(bits_of(rank.bucket(0)), bits_of(reference.bucket(0))) << "step " << step;
      EXPECT_EQ(bits_of(rank.hook().residual("t0")), bits_of(reference.hook().residual("t0")));
    }
  });
}

TEST_P(LossScale, AmpC63UnderMergeTheFinitePartOfTheWindowWaits) {
  auto const overflowing = [](int rank, std::uint64_t step, std::string const& tensor,
                              std::uint64_t count) {
    std::vector<float> gradient = heavy_tailed_of(rank, step, tensor, count);
    if (step % 4 == 2 && rank == 1) gradient[step] = kInfinity;
    return gradient;
  };
  test::run_ranks(2, [&](Transport& transport) {
    HookRank rank(transport, options_for(GetParam()), one_bucket_each({600}));
    for (std::uint64_t step = 0; step < 12; ++step) {
      if (step % 4 != 2) {
        rank.step(step, overflowing);
        continue;
      }
      std::vector<float> const before = rank.hook().residual("t0");
      EXPECT_TRUE(rank.attempt(step, overflowing).result.found_nonfinite);
      rank.after_begin = [&, before, step] {
        std::vector<float> const after = rank.hook().residual("t0");
        std::vector<float> const given = overflowing(transport.rank(), step, "t0", 600);
        float largest = 0.0F;
        for (std::size_t i = 0; i < 600; ++i) {
          if (std::isfinite(given[i])) largest = std::max(largest, std::abs(given[i] + before[i]));
        }
        for (std::size_t i = 0; i < 600; ++i) {
          float const finite = std::isfinite(given[i]) ? given[i] : 0.0F;
          // (c − ĉ) + ĉ: three roundings, each of a number not above twice the largest.
          ASSERT_NEAR(after[i], finite + before[i], 3 * 0x1p-23F * largest) << "element " << i;
        }
      };
    }
  });
}

TEST_P(LossScale, AmpC64OneOverflowIsOneHalving) {
  test::run_ranks(2, [&](Transport& transport) {
    HookRank rank(transport, options_for(GetParam()), one_bucket_each({500}));
    float scale = 65536.0F;
    int num_overflows = 0;
    for (std::uint64_t step = 0; step < 56; ++step) {
      auto const gradient_of = [&](int r, std::uint64_t s, std::string const& t, std::uint64_t n) {
        std::vector<float> gradient = heavy_tailed_of(r, s, t, n);
        if (step == 5 && r == 1) gradient[11] = kInfinity;
        return gradient;
      };
      HookRank::Attempt const attempt = rank.attempt(step, gradient_of, scale);
      ASSERT_TRUE(attempt.result.status.ok());
      ASSERT_EQ(attempt.result.found_nonfinite, step == 5)
          << "rank " << transport.rank() << ", step " << step;
      if (attempt.result.found_nonfinite) {
        scale /= 2.0F;
        ++num_overflows;
      } else {
        ASSERT_TRUE(attempt.result.committed);
        for (float const x : rank.bucket(0)) ASSERT_TRUE(std::isfinite(x));
      }
    }
    EXPECT_EQ(num_overflows, 1);
    EXPECT_EQ(scale, 32768.0F);
    for (float const x : rank.hook().residual("t0")) ASSERT_TRUE(std::isfinite(x));
  });
}

// A power of two scales exactly, so results in units of the scale are equal bit for bit.
TEST_P(LossScale, AmpC65ScaleDoesNotChangeWhatIsSent) {
  test::run_ranks(2, [&](Transport& transport) {
    HookRank unscaled(transport, options_for(GetParam()), one_bucket_each({800}));
    HookRank scaled(transport, options_for(GetParam()), one_bucket_each({800}));
    for (std::uint64_t step = 0; step < 16; ++step) {
      float const scale = step < 6 ? 1024.0F : step < 11 ? 512.0F : 4096.0F;
      unscaled.step(step);
      scaled.step(step, heavy_tailed_of, scale);
      for (std::size_t i = 0; i < 800; ++i) {
        ASSERT_EQ(scaled.bucket(0)[i] / scale, unscaled.bucket(0)[i])
            << "element " << i << ", step " << step;
      }
      EXPECT_EQ(scaled.hook().residual("t0"), unscaled.hook().residual("t0"))
          << "in units of the true gradient";
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Specs, LossScale,
                         ::testing::Values("topk(density=0.02) ; feedback=residual",
                                           "threshold(value=0.5) ; feedback=residual",
                                           "topk(density=0.05) | int8 ; feedback=residual",
                                           "sign ; feedback=residual ; exchange=gather"),
                         [](auto const& c) {
                           return c.param.substr(0, c.param.find_first_of("( ")) +
                                  std::to_string(c.index);
                         });

TEST(LossScaleByHand, AmpC65AResidualFollowsTheScale) {
  test::run_ranks(1, [](Transport& transport) {
    HookRank rank(transport, options_for("threshold(value=0.5) ; feedback=residual"),
                  one_bucket_each({1}));
    rank.step(0, always({0.2F}), 1024.0F);
    EXPECT_EQ(rank.bucket(0)[0], 0.0F);
    EXPECT_FLOAT_EQ(rank.hook().residual("t0")[0], 0.2F);
    rank.step(1, always({0.2F}), 512.0F);
    EXPECT_EQ(rank.bucket(0)[0], 0.0F) << "0.4 is below the threshold at any scale";
    rank.step(2, always({0.2F}), 512.0F);
    EXPECT_NEAR(rank.bucket(0)[0], 0.6F * 512.0F, 1e-4F)
        << "three times 0.2, in units of the scale of now";
    EXPECT_EQ(rank.hook().residual("t0")[0], 0.0F);
  });
}

}  // namespace
}  // namespace gradsieve::testing
