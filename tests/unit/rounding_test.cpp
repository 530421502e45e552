// SPDX-License-Identifier: Apache-2.0
// What stochastic rounding promises on average. The bounds are 6 standard deviations, which chance
// passes once in 5·10^8 checks; the keys are fixed, so a test that passes once passes always.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/ops.hpp"
#include "tests/support/gradient_shapes.hpp"

namespace gradsieve::kernels {
namespace {

using gradsieve::testing::make_gradient;
using gradsieve::testing::Shape;

constexpr std::size_t kMillion = 1'000'000;

TEST(StochasticRounding, IsUnbiased) {
  // With a maximum of 7 the levels of 4 bits are the integers.
  std::vector<float> const corrected = {7.0F,  0.0F,   0.01F, 0.25F,  0.5F,  0.75F, 0.99F, 1.3F,
                                        -0.1F, -0.25F, -0.5F, -0.75F, -3.3F, 5.9F,  -6.9F, 2.0F};
  std::size_t const n = corrected.size();
  constexpr int kDraws = 40'000;
  std::vector<double> sums(n);
  for (int draw = 0; draw < kDraws; ++draw) {
    std::vector<std::byte> codes(n / 2);
    std::vector<float> scales(1);
    std::vector<float> decoded(n);
    RoundingKey const key = {philox_key(1, tensor_id("weight"), Purpose::quantize, 0),
                             static_cast<std::uint64_t>(draw), 0};
    ref::quantize({}, corrected, 4, n, Rounding::stochastic, key, codes, scales, {});
    ref::dequantize_add({}, codes, std::as_bytes(std::span(scales)).data(), 4, n, 1.0F, decoded);
    for (std::size_t i = 0; i < n; ++i) sums[i] += decoded[i];
  }
  for (std::size_t i = 0; i < n; ++i) {
    double const fraction = corrected[i] - std::floor(static_cast<double>(corrected[i]));
    double const deviation = std::sqrt(fraction * (1 - fraction) / kDraws);
    // 16 random bits: a probability is right to 2^-17.
    EXPECT_NEAR(sums[i] / kDraws, corrected[i], 6 * deviation + 0x1p-17) << i;
  }
}

// A million elements of 0.3 on the levels {0, 1}.
std::vector<bool> rounded_up(TensorId tensor, std::uint64_t step) {
  std::vector<float> corrected(kMillion + 1, 0.3F);
  corrected.back() = 7.0F;  // makes the scale 1
  std::vector<std::byte> codes(kMillion / 2 + 1);
  std::vector<float> scales(1);
  RoundingKey const key = {philox_key(1, tensor, Purpose::quantize, 0), step, 0};
  ref::quantize({}, corrected, 4, corrected.size(), Rounding::stochastic, key, codes, scales, {});
  EXPECT_EQ(scales[0], 1.0F);
  std::vector<float> decoded(corrected.size());
  ref::dequantize_add({}, codes, std::as_bytes(std::span(scales)).data(), 4, corrected.size(), 1.0F,
                      decoded);
  std::vector<bool> up(kMillion);
  for (std::size_t i = 0; i < kMillion; ++i) up[i] = decoded[i] == 1.0F;
  return up;
}

double mean_of(std::vector<bool> const& up) {
  return static_cast<double>(std::ranges::count(up, true)) / kMillion;
}

double agreement(std::vector<bool> const& a, std::vector<bool> const& b) {
  std::size_t same = 0;
  for (std::size_t i = 0; i < kMillion; ++i) same += a[i] == b[i] ? 1U : 0U;
  return static_cast<double>(same) / kMillion;
}

TEST(StochasticRounding, C15TwoTensorsAndTwoStepsRoundIndependently) {
  auto const first = rounded_up(tensor_id("first"), 5);
  auto const second = rounded_up(tensor_id("second"), 5);
  auto const next_step = rounded_up(tensor_id("first"), 6);

  EXPECT_NEAR(mean_of(first), 0.3, 0.0023);
  EXPECT_NEAR(mean_of(second), 0.3, 0.0023);
  EXPECT_NEAR(agreement(first, second), 0.58, 0.0025);
  EXPECT_NEAR(agreement(first, next_step), 0.58, 0.0025);
  EXPECT_EQ(agreement(first, rounded_up(tensor_id("first"), 5)), 1.0);
}

TEST(Quantize, C17TheErrorGrowsSmoothlyWithTheBlock) {
  std::vector<float> const gradient = make_gradient(Shape::gaussian, kMillion);
  for (int const bits : {8, 4}) {
    double last = 0;
    for (std::uint64_t const block : {64U, 128U, 256U, 512U, 1024U, 2048U, 4096U}) {
      std::vector<std::byte> codes(kMillion);
      std::vector<float> scales((kMillion + block - 1) / block);
      std::vector<float> residual(kMillion);
      ref::quantize({}, gradient, bits, block, Rounding::nearest, {}, codes, scales, residual);
      double square = 0;
      for (float const error : residual) square += static_cast<double>(error) * error;
      double const rms = std::sqrt(square / kMillion);

      EXPECT_GT(rms, last) << bits << " bits, block " << block;
      EXPECT_LE(rms, last == 0 ? rms : 1.15 * last) << bits << " bits, block " << block;
      last = rms;
    }
  }
}

}  // namespace
}  // namespace gradsieve::kernels
