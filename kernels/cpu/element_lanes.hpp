// SPDX-License-Identifier: Apache-2.0
// Gradient elements as f32 and back, written so that a loop over them vectorises for every target.
// For .simd.cpp files only: everything is local to the file that includes it.
#pragma once

#include <cstdint>

#include "kernels/cpu/element.hpp"

/// Above a loop: what an iteration stores, no other one reads. Holds for arrays that do not overlap
/// and for those that are the same; without it only the first are vectorised.
#if defined(__clang__)
#define GRADSIEVE_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
// Says of each loop that stays scalar that it does; that is slower, but right.
#pragma clang diagnostic ignored "-Wpass-failed"
#else
#define GRADSIEVE_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

namespace gradsieve::kernels::cpu {
namespace {

inline constexpr std::uint32_t kSignBit = 0x80000000U;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000U;
inline constexpr std::uint32_t kNanBits = 0x7fc00000U;

[[gnu::always_inline]] inline std::uint32_t bits_of(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}
[[gnu::always_inline]] inline float float_of(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

/// A stored NaN is the canonical one.
[[gnu::always_inline]] inline float canonical(float x) { return x == x ? x : float_of(kNanBits); }

[[gnu::always_inline]] inline float widen_f16(std::uint16_t half) {
  std::uint32_t const magnitude = half & 0x7fffU;
  std::uint32_t const sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  std::uint32_t const shifted = magnitude << 13;
  // Subnormal halves are integers in units of 2^-24 and normal floats.
  std::uint32_t const subnormal =
      bits_of(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F);
  std::uint32_t const finite = magnitude < 0x400U ? subnormal : shifted + ((127U - 15U) << 23);
  std::uint32_t const absolute = magnitude == 0x7c00U ? kInfinityBits : finite;
  return float_of(magnitude > 0x7c00U ? kNanBits : absolute | sign);
}

[[gnu::always_inline]] inline float widen_bf16(std::uint16_t half) {
  return canonical(float_of(static_cast<std::uint32_t>(half) << 16));
}

/// Largest: the bits of an overflown number, those of infinity or of the largest finite one.
[[gnu::always_inline]] inline std::uint16_t narrow_f16(float x, std::uint32_t largest) {
  std::uint32_t const bits = bits_of(x);
  std::uint32_t const magnitude = bits & ~kSignBit;
  std::uint32_t const sign = (bits & kSignBit) >> 16;
  std::uint32_t const odd = (magnitude >> 13) & 1U;
  std::uint32_t const normal = (magnitude - ((127U - 15U) << 23) + 0xfffU + odd) >> 13;
  // The last bit of a float at 1/2 is the quantum of subnormal halves, so the sum rounds to it.
  std::uint32_t const subnormal = bits_of(float_of(magnitude) + 0.5F) - bits_of(0.5F);
  std::uint32_t const rounded = magnitude < 0x38800000U ? subnormal : normal;
  // What is too large comes out above 0x7c00, and a carry out of the last mantissa makes just that.
  std::uint32_t const clamped = rounded < largest ? rounded : largest;
  std::uint32_t const absolute = magnitude == kInfinityBits ? 0x7c00U : clamped;
  return static_cast<std::uint16_t>(magnitude > kInfinityBits ? 0x7e00U : absolute | sign);
}

[[gnu::always_inline]] inline std::uint16_t narrow_bf16(float x, std::uint32_t largest) {
  std::uint32_t const bits = bits_of(x);
  std::uint32_t const magnitude = bits & ~kSignBit;
  std::uint32_t const sign = (bits & kSignBit) >> 16;
  std::uint32_t const rounded = (magnitude + 0x7fffU + ((magnitude >> 16) & 1U)) >> 16;
  std::uint32_t const clamped = rounded < largest ? rounded : largest;
  std::uint32_t const absolute = magnitude == kInfinityBits ? 0x7f80U : clamped;
  return static_cast<std::uint16_t>(magnitude > kInfinityBits ? 0x7fc0U : absolute | sign);
}

/// Reads elements of one type. `at(i)` is exact; a NaN comes out canonical, but for f32, where what
/// follows decides.
template <ElementType kType>
struct Elements;

template <>
struct Elements<ElementType::f32> {
  float const* data;
  explicit Elements(void const* start) : data(static_cast<float const*>(start)) {}
  [[gnu::always_inline]] float at(std::uint64_t i) const { return data[i]; }
};
template <>
struct Elements<ElementType::f16> {
  std::uint16_t const* data;
  explicit Elements(void const* start) : data(static_cast<std::uint16_t const*>(start)) {}
  [[gnu::always_inline]] float at(std::uint64_t i) const { return widen_f16(data[i]); }
};
template <>
struct Elements<ElementType::bf16> {
  std::uint16_t const* data;
  explicit Elements(void const* start) : data(static_cast<std::uint16_t const*>(start)) {}
  [[gnu::always_inline]] float at(std::uint64_t i) const { return widen_bf16(data[i]); }
};

}  // namespace
}  // namespace gradsieve::kernels::cpu
