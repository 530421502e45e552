// SPDX-License-Identifier: Apache-2.0
// Error feedback, sums and indexed access on data that a person can check.
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/ops.hpp"
#include "kernels/ref/feedback.hpp"

namespace gradsieve::kernels {
namespace {

using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

class FeedbackKernel : public ::testing::TestWithParam<Backend> {
 protected:
  FeedbackKernel() { ctx.backend = GetParam(); }
  ExecContext ctx;
};

TEST_P(FeedbackKernel, CompensateAddsTheCarriedResidual) {
  std::vector<float> const gradient = {1, -2, 0.5F, 4};
  std::vector<float> residual = {2, 2, -1, 0};

  Flags const flags = compensate(ctx, std::span(gradient), {residual, residual, 0.5F});

  EXPECT_THAT(residual, ElementsAre(2, -1, 0, 4));
  EXPECT_EQ(flags, 0U);
}

TEST_P(FeedbackKernel, CompensateRoundsTheProductAndThenTheSum) {
  // The square of 1 + 2^-12 ends in 2^-24, which rounding drops and an fma would keep.
  std::vector<float> const gradient = {-(1 + 0x1p-11F)};
  std::vector<float> residual = {1 + 0x1p-12F};

  compensate(ctx, std::span(gradient), {residual, residual, 1 + 0x1p-12F});

  EXPECT_EQ(residual[0], 0.0F);
}

TEST_P(FeedbackKernel, CompensateKeepsTheResidualWhereTheSumIsNotFinite) {
  std::vector<float> const gradient = {std::nanf(""), kInfinity, kLargest, 1};
  std::vector<float> residual = {1, 2, kLargest, 4};

  Flags const flags = compensate(ctx, std::span(gradient), {residual, residual, 1.0F});

  EXPECT_THAT(residual, ElementsAre(1, 2, kLargest, 5));
  EXPECT_EQ(flags, kStepNonFinite);
}

TEST_P(FeedbackKernel, CompensateWithoutAResidualTakesTheGradient) {
  std::vector<BFloat16> const gradient = {{0x3f80}, {0xc000}, {0x7f80}};
  std::vector<float> residual(3, 9.0F);

  Flags const flags = compensate(ctx, std::span(gradient), {{}, residual, 1.0F});

  EXPECT_THAT(residual, ElementsAre(1, -2, 0));
  EXPECT_EQ(flags, kStepNonFinite);
}

TEST_P(FeedbackKernel, RetainSubtractsWhatWasSent) {
  std::vector<float> const decoded = {1, 0, -2};
  std::vector<float> residual = {1.5F, 2, -2};

  retain(ctx, decoded, residual);

  EXPECT_THAT(residual, ElementsAre(0.5F, 2, 0));
}

TEST_P(FeedbackKernel, StoreBf16IsExactWhereItCan) {
  std::vector<float> const values = {1, -2.5F, 0, -0.0F, kInfinity, -kInfinity, 0x1p-133F};
  std::vector<BFloat16> out(values.size());

  for (std::uint64_t step = 0; step < 20; ++step) {
    store_bf16(ctx, values, {{1, 2}, step, 3}, out);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(out[i].bits, bits_of(values[i]) >> 16) << "element " << i;
    }
  }
}

TEST_P(FeedbackKernel, StoreBf16SaturatesAndMakesNanCanonical) {
  std::vector<float> const values = {kLargest, -kLargest, std::bit_cast<float>(0xffc12345U)};
  std::vector<BFloat16> out(3);

  for (std::uint64_t step = 0; step < 20; ++step) {
    store_bf16(ctx, values, {{1, 2}, step, 0}, out);
    ASSERT_EQ(out[0].bits, 0x7f7f);
    ASSERT_EQ(out[1].bits, 0xff7f);
    ASSERT_EQ(out[2].bits, 0x7fc0);
  }
}

TEST_P(FeedbackKernel, StoreBf16IsRightOnAverage) {
  // A quarter of the way from 1 to the next bf16: 10^5 draws, five standard deviations.
  constexpr std::size_t kDraws = 100000;
  std::vector<float> const values(kDraws, 1 + 0x1p-9F);
  std::vector<BFloat16> out(kDraws);

  store_bf16(ctx, values, {{3, 4}, 0, 0}, out);

  std::size_t num_raised = 0;
  for (BFloat16 const x : out) num_raised += x.bits == 0x3f81 ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(num_raised) / kDraws, 0.25, 5 * std::sqrt(0.25 * 0.75 / kDraws));
}

TEST_P(FeedbackKernel, ScaleMultiplies) {
  std::vector<float> values = {1, -2, 0.25F};

  scale(ctx, 4, values);

  EXPECT_THAT(values, ElementsAre(4, -8, 1));
}

TEST_P(FeedbackKernel, SumSquaresAddsItsLanesInPairs) {
  // In lanes 0 to 7: left to right the ones would vanish beside 2^54.
  std::vector<float> const values = {0x1p27F, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1};

  double sum = 0;
  sum_squares(ctx, values, &sum);
  double sum_of_none = 1;
  sum_squares(ctx, {}, &sum_of_none);

  EXPECT_EQ(sum, ((0x1p54 + 1.0) + (1.0 + 1.0)) + ((1.0 + 1.0) + (1.0 + 2.0)));
  EXPECT_EQ(sum_of_none, 0.0);
}

TEST_P(FeedbackKernel, TakeMovesTheElementsOut) {
  std::vector<float> x = {1, -2, 3, 4};
  std::vector<float> values(2);

  take(ctx, std::vector<std::uint32_t>{1, 3}, 1, x, values);

  EXPECT_THAT(values, ElementsAre(-2, 4));
  EXPECT_THAT(x, ElementsAre(1, 0, 3, 0));
}

TEST_P(FeedbackKernel, ScatterAddAddsWeightedBlocks) {
  std::vector<float> accumulator = {1, 1, 1, 1, 1};

  scatter_add(ctx, std::vector<std::uint32_t>{0, 2}, 2, std::vector<float>{2, 4, 8}, 0.5F,
              accumulator);

  EXPECT_THAT(accumulator, ElementsAre(2, 3, 1, 1, 5));
}

TEST_P(FeedbackKernel, CheckIndicesWantsThemAscendingAndInside) {
  auto const check = [this](std::vector<std::uint32_t> const& indices, std::uint64_t universe) {
    return check_indices(ctx, indices, universe);
  };

  EXPECT_TRUE(check({}, 0));
  EXPECT_TRUE(check({0, 3, 4}, 5));
  EXPECT_FALSE(check({0, 3, 5}, 5));
  EXPECT_FALSE(check({0, 3, 3}, 5));
  EXPECT_FALSE(check({3, 0}, 5));
  EXPECT_TRUE(check({0xffffffffU}, std::uint64_t{1} << 32));
}

INSTANTIATE_TEST_SUITE_P(Backends, FeedbackKernel, ::testing::Values(Backend::ref, Backend::cpu),
                         [](auto const& backend) {
                           return backend.param == Backend::ref ? "ref" : "cpu";
                         });

TEST(RefTemplates, CompensatedInDouble) {
  Flags flags = 0;

  EXPECT_EQ(ref::compensated(1.0, 0.5, 3.0, flags), 2.5);
  EXPECT_EQ(flags, 0U);
  EXPECT_EQ(ref::compensated(std::nan(""), 0.5, 3.0, flags), 1.5);
  EXPECT_EQ(flags, kStepNonFinite);
}

}  // namespace
}  // namespace gradsieve::kernels
