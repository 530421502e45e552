// SPDX-License-Identifier: Apache-2.0
// One element of a gradient as an f32, and back: the definition of the two half formats.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve::kernels::ref {

/// A binary format of one sign bit, `exponent_bits` and `mantissa_bits`.
struct HalfFormat {
  int exponent_bits;
  int mantissa_bits;

  [[nodiscard]] constexpr int bias() const noexcept { return (1 << (exponent_bits - 1)) - 1; }
  [[nodiscard]] constexpr std::uint32_t infinity() const noexcept {
    return ((1U << exponent_bits) - 1) << mantissa_bits;
  }
  [[nodiscard]] constexpr std::uint32_t canonical_nan() const noexcept {
    return infinity() | (1U << (mantissa_bits - 1));
  }
};
inline constexpr HalfFormat kFloat16 = {5, 10};
inline constexpr HalfFormat kBFloat16 = {8, 7};

inline constexpr float kCanonicalNan = std::bit_cast<float>(0x7fc00000U);

/// A stored NaN is the canonical one.
[[nodiscard]] inline float canonical(float x) noexcept { return std::isnan(x) ? kCanonicalNan : x; }

/// (−1)^sign · mantissa · 2^exponent, exact.
[[nodiscard]] inline float widen_half(std::uint32_t bits, HalfFormat format) noexcept {
  std::uint32_t const magnitude = bits & 0x7fffU;
  if (magnitude > format.infinity()) return kCanonicalNan;
  int const exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  std::uint32_t const fraction = magnitude & ((1U << format.mantissa_bits) - 1);
  // Exponent 0 is that of 1, without the hidden bit: the subnormal numbers.
  std::uint32_t const mantissa = exponent == 0 ? fraction : fraction | (1U << format.mantissa_bits);
  float const absolute =
      magnitude == format.infinity()
          ? INFINITY
          : std::ldexp(static_cast<float>(mantissa),
                       std::max(exponent, 1) - format.bias() - format.mantissa_bits);
  return (bits & 0x8000U) != 0 ? -absolute : absolute;
}

/// x rounded to the format, to nearest, ties to even. With `saturate` no finite x becomes infinite.
[[nodiscard]] inline std::uint32_t narrow_half(float x, HalfFormat format, bool saturate) noexcept {
  if (std::isnan(x)) return format.canonical_nan();
  std::uint32_t const sign = std::signbit(x) ? 0x8000U : 0U;
  if (std::isinf(x)) return sign | format.infinity();
  double const absolute = std::fabs(static_cast<double>(x));
  int const exponent = std::max(absolute == 0 ? -1074 : std::ilogb(absolute), 1 - format.bias());
  // In units of the last kept bit; a carry into the next exponent is the right bit pattern as well.
  auto const mantissa = static_cast<std::uint32_t>(
      std::nearbyint(std::ldexp(absolute, format.mantissa_bits - exponent)));
  auto const steps = static_cast<std::uint32_t>(exponent + format.bias() - 1);
  std::uint32_t const bits = (steps << format.mantissa_bits) + mantissa;
  return sign | std::min(bits, saturate ? format.infinity() - 1 : format.infinity());
}

/// Element i of a gradient.
[[nodiscard]] inline float element(ConstTensorView values, std::uint64_t i) noexcept {
  if (values.dtype == DType::f16) return widen_half(values.as<Float16>()[i].bits, kFloat16);
  if (values.dtype == DType::bf16) return widen_half(values.as<BFloat16>()[i].bits, kBFloat16);
  return canonical(values.as<float>()[i]);
}

}  // namespace gradsieve::kernels::ref
