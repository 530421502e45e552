// SPDX-License-Identifier: Apache-2.0
// Rows of half-precision numbers to f32 and back, eight or sixteen at a time where the machine has
// an instruction for it. For .simd.cpp files only: everything is local to the file that includes
// it.
#pragma once

#include <cstdint>

#include "kernels/cpu/lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

#if defined(__AVX2__)
[[gnu::always_inline]] inline Floats canonical_lanes(Floats x) {
  Words const is_nan = x != x;
  return reinterpret_cast<Floats>((is_nan & all_words(kNanBits)) |
                                  (~is_nan & reinterpret_cast<Words>(x)));
}

[[gnu::always_inline]] inline void store_f16_lanes(Floats x, std::uint16_t* out) {
  constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#if defined(__AVX512F__)
  store(_mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(x), kToNearest), out);
#else
  store(_mm256_cvtps_ph(reinterpret_cast<__m256>(x), kToNearest), out);
#endif
}
#endif

// Where a loop over lanes ends, or is not to be had, the plain one does the rest; that vectorises
// by itself.

[[maybe_unused]] void widen_f16_row(std::uint16_t const* halves, std::uint64_t count, float* out) {
  std::uint64_t i = 0;
#if defined(__AVX2__)
  for (; i + kLanes <= count; i += kLanes) {
    store(canonical_lanes(load_elements<ElementType::f16>(halves + i)), out + i);
  }
#endif
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (; i < count; ++i) out[i] = widen_f16(halves[i]);
}

[[maybe_unused]] void widen_bf16_row(std::uint16_t const* halves, std::uint64_t count, float* out) {
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) out[i] = widen_bf16(halves[i]);
}

[[maybe_unused]] void narrow_f16_row(float const* values, std::uint64_t count, bool saturate,
                                     std::uint16_t* out) {
  std::uint64_t i = 0;
#if defined(__AVX2__)
  // Rounding takes what is beyond the largest half to infinity; a finite number stops before it.
  std::uint32_t const largest = saturate ? bits_of(65504.0F) : kInfinityBits;
  for (; i + kLanes <= count; i += kLanes) {
    Floats const x = load<Floats>(values + i);
    Words const magnitude = magnitudes(x);
    Words const is_beyond =
        (magnitude > all_words(largest)) & (magnitude < all_words(kInfinityBits));
    Words const bits = (is_beyond & all_words(largest)) | (~is_beyond & magnitude);
    Words const sign = reinterpret_cast<Words>(x) & all_words(kSignBit);
    store_f16_lanes(canonical_lanes(reinterpret_cast<Floats>(bits | sign)), out + i);
  }
#endif
  std::uint32_t const overflown = saturate ? 0x7bffU : 0x7c00U;
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (; i < count; ++i) out[i] = narrow_f16(values[i], overflown);
}

/// The elements [begin, begin + count) as f32: where they stand, or widened into `buffer`.
[[maybe_unused]] float const* f32_row(void const* values, ElementType type, std::uint64_t begin,
                                      std::uint64_t count, float* buffer) {
  if (type == ElementType::f32) return static_cast<float const*>(values) + begin;
  auto const* const halves = static_cast<std::uint16_t const*>(values) + begin;
  if (type == ElementType::f16) {
    widen_f16_row(halves, count, buffer);
  } else {
    widen_bf16_row(halves, count, buffer);
  }
  return buffer;
}

}  // namespace
}  // namespace gradsieve::kernels::cpu
