// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/ops.hpp"
#include "tests/support/gradient_shapes.hpp"

namespace gradsieve::kernels {
namespace {

using gradsieve::testing::make_gradient;
using gradsieve::testing::Shape;

struct Quantized {
  std::vector<std::byte> codes;
  std::vector<float> scales;
  std::vector<float> residual;
  int bits;
  std::uint64_t block_elements;

  std::vector<float> decoded() const {
    std::vector<float> sum(residual.size());
    ref::dequantize_add({}, codes, std::as_bytes(std::span(scales)).data(), bits, block_elements,
                        1.0F, sum);
    return sum;
  }
  int code(std::size_t i) const { return std::to_integer<std::int8_t>(codes[i]); }
};

Quantized quantized(std::vector<float> const& corrected, int bits, std::uint64_t block_elements,
                    Rounding rounding = Rounding::nearest, RoundingKey const& key = {}) {
  std::size_t const n = corrected.size();
  Quantized q{.codes = std::vector<std::byte>(bits == 8 ? n : (n + 1) / 2),
              .scales = std::vector<float>((n + block_elements - 1) / block_elements),
              .residual = std::vector<float>(n),
              .bits = bits,
              .block_elements = block_elements};
  ref::quantize({}, corrected, bits, block_elements, rounding, key, q.codes, q.scales, q.residual);
  return q;
}

TEST(Quantize, FollowsTheFormulaWithEightBits) {
  Quantized const q = quantized({127.0F, -63.5F, 0.4F, -0.5F, 1.5F, -254.0F, 3.0F}, 8, 5);

  EXPECT_EQ(q.scales, (std::vector<float>{1.0F, 2.0F}));
  EXPECT_EQ(q.code(0), 127);
  EXPECT_EQ(q.code(1), -64);  // a tie, to even
  EXPECT_EQ(q.code(2), 0);
  EXPECT_EQ(q.code(3), 0);
  EXPECT_EQ(q.code(4), 2);
  EXPECT_EQ(q.code(5), -127);
  EXPECT_EQ(q.code(6), 2);
  EXPECT_EQ(q.residual, (std::vector<float>{0.0F, 0.5F, 0.4F, -0.5F, -0.5F, 0.0F, -1.0F}));
}

TEST(Quantize, PacksFourBitsTheEvenElementLow) {
  Quantized const q = quantized({7.0F, -7.0F, 1.0F, -1.0F, 3.0F}, 4, 8);

  EXPECT_EQ(q.scales, std::vector<float>{1.0F});
  EXPECT_EQ(q.codes, (std::vector<std::byte>{std::byte{0x97}, std::byte{0xf1}, std::byte{0x03}}));
  EXPECT_EQ(q.decoded(), (std::vector<float>{7.0F, -7.0F, 1.0F, -1.0F, 3.0F}));
}

TEST(Quantize, RaisesAScaleWhoseTopLevelIsBelowTheMaximum) {
  for (int const bits : {8, 4}) {
    float const levels = bits == 8 ? 127.0F : 7.0F;
    for (float largest = 1.0F; largest < 1.001F; largest = std::nextafter(largest, 2.0F)) {
      Quantized const q = quantized({largest}, bits, 1);
      ASSERT_GE(q.scales[0] * levels, largest);
      ASSERT_LE(std::fabs(q.residual[0]), 0x1p-22F) << largest;
    }
  }
}

TEST(Quantize, KeepsTheLargestFloatFinite) {
  float const largest = std::numeric_limits<float>::max();
  for (int const bits : {8, 4}) {
    Quantized const q = quantized({largest, -largest, std::nextafter(largest, 0.0F)}, bits, 4);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(std::isfinite(q.decoded()[i])) << i;
      EXPECT_LE(std::fabs(q.residual[i]), largest * 0x1p-22F) << i;
    }
  }
}

TEST(Quantize, KeepsDenormalsToHalfALevel) {
  float const smallest = std::numeric_limits<float>::denorm_min();
  Quantized const q = quantized({smallest, -190 * smallest, 64 * smallest, 0.0F}, 8, 4);

  EXPECT_EQ(q.scales[0], 2 * smallest);
  EXPECT_EQ(q.decoded(), (std::vector<float>{0.0F, -190 * smallest, 64 * smallest, 0.0F}));
  EXPECT_EQ(q.residual, (std::vector<float>{smallest, 0.0F, 0.0F, 0.0F}));
}

TEST(Quantize, C11ABlockOfZerosDecodesToZeros) {
  std::vector<float> gradient = make_gradient(Shape::gaussian, 192);
  std::fill(gradient.begin() + 64, gradient.begin() + 128, 0.0F);
  std::vector<float> const alone(gradient.begin(), gradient.begin() + 64);
  for (int const bits : {8, 4}) {
    for (Rounding const rounding : {Rounding::nearest, Rounding::stochastic}) {
      Quantized const q = quantized(gradient, bits, 64, rounding);
      std::vector<float> const decoded = q.decoded();

      EXPECT_EQ(q.scales[1], 0.0F);
      for (std::size_t i = 64; i < 128; ++i) {
        EXPECT_EQ(decoded[i], 0.0F);
        EXPECT_EQ(q.residual[i], 0.0F);
      }
      EXPECT_EQ(q.scales[0], quantized(alone, bits, 64, rounding).scales[0]);
      EXPECT_TRUE(std::ranges::all_of(decoded, [](float x) { return std::isfinite(x); }));
    }
  }
}

TEST(Quantize, C12AConstantBlockDecodesToItsConstant) {
  std::vector<float> nearly(64, 0.01F);
  nearly[63] = 0.0100001F;
  for (auto const& block : {std::vector<float>(64, 0.01F), std::vector<float>(64, -3e4F), nearly}) {
    for (int const bits : {8, 4}) {
      Quantized const q = quantized(block, bits, 64);
      std::vector<float> const decoded = q.decoded();
      float const one_ulp = std::fabs(std::nextafter(block[0], 1e9F) - block[0]);
      // 0.0100001 is 107 ulp above its neighbours, which share its level.
      float const spread = std::fabs(block[63] - block[0]);
      for (std::size_t i = 0; i < 64; ++i) {
        EXPECT_LE(std::fabs(decoded[i] - block[i]), one_ulp + spread) << i;
        EXPECT_LE(std::fabs(q.residual[i]), one_ulp + spread) << i;
      }
    }
  }
}

// Blocks are counted in the flat array: a block that spans two rows serves both with one scale.
TEST(Quantize, C13RowsThatAreNoMultipleOfTheBlockKeepTheirSigns) {
  std::vector<float> matrix;
  for (int i = 0; i < 30; ++i) {
    matrix.push_back(static_cast<float>(std::pow(100.0, i / 10)) * (i % 2 == 0 ? 1.0F : -1.0F));
  }

  Quantized const q = quantized(matrix, 8, 4);
  std::vector<float> const decoded = q.decoded();

  ASSERT_EQ(q.scales.size(), 8U);
  for (std::size_t i = 0; i < 30; ++i) {
    std::size_t const begin = i / 4 * 4;
    float largest = 0;
    for (std::size_t j = begin; j < std::min<std::size_t>(begin + 4, 30); ++j) {
      largest = std::max(largest, std::fabs(matrix[j]));
    }
    EXPECT_LE(std::fabs(decoded[i] - matrix[i]), largest / 127) << i;
    EXPECT_GE(decoded[i] * matrix[i], 0.0F) << i;
  }
}

TEST(Quantize, C14PacksAnyCountAndIgnoresThePadding) {
  for (std::size_t n = 1; n <= 33; ++n) {
    std::vector<float> gradient(n);
    for (std::size_t i = 0; i < n; ++i) {
      gradient[i] = static_cast<float>(static_cast<int>(i % 15) - 7);
    }
    gradient[n / 2] = 7.0F;

    Quantized q = quantized(gradient, 4, 64);

    ASSERT_EQ(q.codes.size(), (n * 4 + 7) / 8);
    EXPECT_EQ(q.decoded(), gradient) << n;
    if (n % 2 == 0) continue;
    EXPECT_EQ(q.codes.back() >> 4, std::byte{0}) << n;
    q.codes.back() |= std::byte{0xf0};
    EXPECT_EQ(q.decoded(), gradient) << n;
  }
}

TEST(Quantize, C14TheResidualIsWhatTheCodesLeaveOut) {
  std::vector<float> const gradient = {0.7F, -0.2F, 0.49F, -0.5F, 0.3F};
  std::vector<float> residual = {0.0F, -0.4F, 0.02F, 0.0F, 0.3F};
  std::vector<float> corrected(5);
  for (std::size_t i = 0; i < 5; ++i) corrected[i] = gradient[i] + residual[i];
  std::vector<std::byte> codes(3);
  std::vector<float> scales(1);

  ref::quantize_fused({}, std::span(gradient), {residual, residual}, 4, 8, Rounding::nearest, {},
                      codes, scales);

  std::vector<float> decoded(5);
  ref::dequantize_add({}, codes, std::as_bytes(std::span(scales)).data(), 4, 8, 1.0F, decoded);
  EXPECT_FLOAT_EQ(scales[0], 0.1F);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(decoded[i] + residual[i], corrected[i], 1e-6F) << i;
    EXPECT_LE(std::fabs(residual[i]), 0.05F + 1e-6F) << i;
  }
}

TEST(DequantizeAdd, C16AddsValuesAndNotCodes) {
  float const scale = 0.01F;
  auto const* const scales = reinterpret_cast<std::byte const*>(&scale);
  std::vector<float> sum(1);
  std::vector<float> mean(1);
  for (int const code : {115, 90}) {
    std::vector<std::byte> const codes = {static_cast<std::byte>(code)};
    ref::dequantize_add({}, codes, scales, 8, 1, 1.0F, sum);
    ref::dequantize_add({}, codes, scales, 8, 1, 0.5F, mean);
  }
  EXPECT_FLOAT_EQ(sum[0], 2.05F);
  EXPECT_FLOAT_EQ(mean[0], 1.025F);

  std::vector<float> full(1);
  for (int rank = 0; rank < 64; ++rank) {
    ref::dequantize_add({}, std::vector{std::byte{127}}, scales, 8, 1, 1.0F, full);
  }
  EXPECT_NEAR(full[0], 64 * 127 * 0.01, 1e-3);
}

}  // namespace
}  // namespace gradsieve::kernels
