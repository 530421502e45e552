// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/ops.hpp"

namespace gradsieve::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The oracle: what a half of these widths means, in double, from its definition.
struct Format {
  DType dtype;
  int exponent_bits;
  int mantissa_bits;
  std::uint16_t infinity;
  std::uint16_t nan;
};
constexpr Format kF16 = {DType::f16, 5, 10, 0x7c00, 0x7e00};
constexpr Format kBF16 = {DType::bf16, 8, 7, 0x7f80, 0x7fc0};

double value_of(std::uint16_t bits, Format const& format) {
  int const magnitude = bits & 0x7fff;
  double const sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  int const exponent = magnitude >> format.mantissa_bits;
  double const fraction =
      (magnitude & ((1 << format.mantissa_bits) - 1)) / std::exp2(format.mantissa_bits);
  int const bias = (1 << (format.exponent_bits - 1)) - 1;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return fraction == 0 ? sign * HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
  }
  return exponent == 0 ? sign * fraction * std::exp2(1 - bias)
                       : sign * (1 + fraction) * std::exp2(exponent - bias);
}

float widen_one(std::uint16_t bits, Format const& format) {
  float out = 0;
  ref::widen({}, {&bits, 1, format.dtype}, {&out, 1});
  return out;
}

std::uint16_t narrow_one(float x, Format const& format, bool saturate = false) {
  std::uint16_t out = 0;
  ref::narrow({}, {&x, 1}, saturate, {&out, 1, format.dtype});
  return out;
}

class HalfFormats : public ::testing::TestWithParam<Format> {};

TEST_P(HalfFormats, WidenEveryHalfExactly) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    double const expected = value_of(static_cast<std::uint16_t>(bits), GetParam());
    float const actual = widen_one(static_cast<std::uint16_t>(bits), GetParam());
    if (std::isnan(expected)) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(actual), 0x7fc00000U) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(actual), expected) << bits;
      ASSERT_EQ(std::signbit(actual), (bits & 0x8000U) != 0) << bits;
    }
  }
}

TEST_P(HalfFormats, NarrowEveryHalfBackToItself) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    float const x = widen_one(static_cast<std::uint16_t>(bits), GetParam());
    ASSERT_EQ(narrow_one(x, GetParam()), std::isnan(x) ? GetParam().nan : bits) << bits;
    ASSERT_EQ(narrow_one(x, GetParam(), true), std::isnan(x) ? GetParam().nan : bits) << bits;
  }
}

// Between every two neighbours: the midpoint goes to the even one, the floats beside it to the
// nearer one.
TEST_P(HalfFormats, NarrowToTheNearestHalfAndTiesToEven) {
  for (std::uint32_t bits = 0; bits + 1 < GetParam().infinity; ++bits) {
    auto const below = static_cast<std::uint16_t>(bits);
    auto const above = static_cast<std::uint16_t>(bits + 1);
    double const middle = (value_of(below, GetParam()) + value_of(above, GetParam())) / 2;
    auto const tie = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(tie), middle);
    ASSERT_EQ(narrow_one(tie, GetParam()), bits % 2 == 0 ? below : above) << bits;
    ASSERT_EQ(narrow_one(std::nextafter(tie, 0.0F), GetParam()), below) << bits;
    ASSERT_EQ(narrow_one(std::nextafter(tie, kInfinity), GetParam()), above) << bits;
    ASSERT_EQ(narrow_one(-tie, GetParam()), (bits % 2 == 0 ? below : above) | 0x8000) << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(All, HalfFormats, ::testing::Values(kF16, kBF16), [](auto const& test) {
  return std::string(dtype_name(test.param.dtype));
});

TEST(Narrow, OverflowsToInfinityUnlessItSaturates) {
  EXPECT_EQ(narrow_one(65519.0F, kF16), 0x7bff);
  EXPECT_EQ(narrow_one(65520.0F, kF16), 0x7c00);
  EXPECT_EQ(narrow_one(65520.0F, kF16, true), 0x7bff);
  EXPECT_EQ(narrow_one(-1e30F, kF16), 0xfc00);
  EXPECT_EQ(narrow_one(-1e30F, kF16, true), 0xfbff);
  EXPECT_EQ(narrow_one(kInfinity, kF16, true), 0x7c00);
  EXPECT_EQ(narrow_one(3.4e38F, kBF16), 0x7f80);
  EXPECT_EQ(narrow_one(3.4e38F, kBF16, true), 0x7f7f);
  EXPECT_EQ(narrow_one(-kInfinity, kBF16, true), 0xff80);
}

TEST(Narrow, StoresTheCanonicalNan) {
  float const nan = std::bit_cast<float>(0xffa00001U);
  float stored = 0;

  ref::narrow({}, {&nan, 1}, false, {&stored, 1, DType::f32});

  EXPECT_EQ(narrow_one(nan, kF16), 0x7e00);
  EXPECT_EQ(narrow_one(nan, kBF16, true), 0x7fc0);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(stored), 0x7fc00000U);
}

TEST(AddScaled, RoundsTheProductAndThenTheSum) {
  // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: rounded it loses the last term, which a fused one keeps.
  std::vector<float> const values = {1.0F + 0x1p-12F};
  std::vector<float> accumulator = {-(1.0F + 0x1p-11F)};

  ref::add_scaled({}, std::span(values), 1.0F + 0x1p-12F, accumulator);

  EXPECT_EQ(accumulator[0], 0.0F);
}

TEST(AddScaled, StoresTheCanonicalNan) {
  std::vector<float> const values = {-kInfinity};
  std::vector<float> accumulator = {kInfinity};

  ref::add_scaled({}, std::span(values), 1.0F, accumulator);

  EXPECT_EQ(std::bit_cast<std::uint32_t>(accumulator[0]), 0x7fc00000U);
}

TEST(AddScaled, C26KeepsWhatABFloat16SumWouldLose) {
  BFloat16 const small = {narrow_one(0.001F, kBF16)};
  std::vector<float> accumulator = {1.0F};

  for (int step = 0; step < 1000; ++step) {
    ref::add_scaled({}, {&small, 1, DType::bf16}, 1.0F, accumulator);
  }

  EXPECT_NEAR(accumulator[0], 2.0F, 1e-3F);
}

}  // namespace
}  // namespace gradsieve::kernels
