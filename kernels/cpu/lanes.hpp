// SPDX-License-Identifier: Apache-2.0
// Vectors of kLanes numbers, and what compilers do not find by themselves: moving the lanes that
// meet a condition together. For .simd.cpp files only: everything is local to the file that
// includes it.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels/cpu/element_lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

#if defined(__AVX512F__)
inline constexpr std::uint32_t kLanes = 16;
#elif defined(__AVX2__)
inline constexpr std::uint32_t kLanes = 8;
#else
inline constexpr std::uint32_t kLanes = 4;
#endif

inline constexpr std::uint32_t kAllLanes = (1U << kLanes) - 1U;

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t Words __attribute__((vector_size(4 * kLanes)));
typedef std::uint16_t Halves __attribute__((vector_size(2 * kLanes)));

template <typename Vector>
[[gnu::always_inline]] inline Vector load(void const* from) {
  Vector x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}
template <typename Vector>
[[gnu::always_inline]] inline void store(Vector x, void* to) {
  __builtin_memcpy(to, &x, sizeof x);
}

/// Past the caches, to an address that is a multiple of the vector's size. end_streaming() comes
/// before anybody else may read it.
[[gnu::always_inline]] inline void store_streaming(Floats x, float* to) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, reinterpret_cast<__m512>(x));
#elif defined(__AVX2__)
  _mm256_stream_ps(to, reinterpret_cast<__m256>(x));
#elif defined(__SSE2__)
  _mm_stream_ps(to, reinterpret_cast<__m128>(x));
#else
  store(x, to);
#endif
}
inline void end_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

[[gnu::always_inline]] inline Words all_words(std::uint32_t x) {
  return Words{} + static_cast<std::int32_t>(x);
}
[[gnu::always_inline]] inline Floats all_floats(float x) {
  return reinterpret_cast<Floats>(all_words(bits_of(x)));
}
[[gnu::always_inline]] inline Words words_from(std::uint32_t first) {
  Words lane = {};
  for (std::uint32_t i = 0; i < kLanes; ++i) lane[i] = static_cast<std::int32_t>(i);
  return lane + static_cast<std::int32_t>(first);
}
[[gnu::always_inline]] inline Words magnitudes(Floats x) {
  return reinterpret_cast<Words>(x) & all_words(~kSignBit);
}

/// A stored NaN is the canonical one.
[[gnu::always_inline]] inline Floats canonical(Floats x) {
  return x == x ? x : all_floats(float_of(kNanBits));
}

/// All ones in the lanes whose bit is set.
[[gnu::always_inline]] inline Words words_of_mask(std::uint32_t mask) {
#if defined(__AVX512F__)
  // Not from the mask alone: vpmovm2d waits for the last value of the register it writes.
  return reinterpret_cast<Words>(_mm512_maskz_mov_epi32(static_cast<__mmask16>(mask),
                                                        reinterpret_cast<__m512i>(all_words(~0U))));
#else
  Words const bit = all_words(1) << words_from(0);
  return (all_words(mask) & bit) == bit;
#endif
}

/// Gradient elements as f32; a NaN is one, but not always the canonical one.
template <ElementType kType>
[[gnu::always_inline]] inline Floats load_elements(void const* from) {
  if constexpr (kType == ElementType::f32) {
    return load<Floats>(from);
  } else if constexpr (kType == ElementType::bf16) {
    return reinterpret_cast<Floats>(__builtin_convertvector(load<Halves>(from), Words) << 16);
  } else {
#if defined(__AVX512F__)
    return reinterpret_cast<Floats>(_mm512_maskz_cvtph_ps(0xffff, load<__m256i>(from)));
#elif defined(__AVX2__)
    return reinterpret_cast<Floats>(_mm256_cvtph_ps(load<__m128i>(from)));
#else
    Halves const halves = load<Halves>(from);
    Floats x = {};
    for (std::uint32_t i = 0; i < kLanes; ++i) x[i] = widen_f16(halves[i]);
    return x;
#endif
  }
}

/// Bit i: word i is greater than that of `bound`.
[[gnu::always_inline]] inline std::uint32_t mask_above(Words x, Words bound) {
#if defined(__AVX512F__)
  std::uint32_t mask =
      _mm512_cmpgt_epi32_mask(reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(bound));
  // g++ 12 may spill a mask as 16 bits and then read 64: it has to be a number first.
  __asm__("" : "+r"(mask));
  return mask;
#elif defined(__AVX2__)
  return static_cast<std::uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(x > bound)));
#elif defined(__SSE2__)
  return static_cast<std::uint32_t>(_mm_movemask_ps(reinterpret_cast<__m128>(x > bound)));
#else
  std::uint32_t mask = 0;
  for (std::uint32_t i = 0; i < kLanes; ++i) mask |= (x[i] > bound[i] ? 1U : 0U) << i;
  return mask;
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
/// For each mask the lanes with a bit in it, ascending, one byte each.
struct CompressTable {
  std::uint64_t lanes[256];
};
constexpr CompressTable make_compress_table() {
  CompressTable table = {};
  for (unsigned mask = 0; mask < 256; ++mask) {
    int place = 0;
    for (unsigned lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1U) != 0) table.lanes[mask] |= std::uint64_t{lane} << (8 * place++);
    }
  }
  return table;
}
alignas(64) constexpr CompressTable kCompressTable = make_compress_table();
#endif

/// Where the lanes of a mask go; made once for what is moved alike.
struct Compression {
  std::uint32_t mask;
#if defined(__AVX2__) && !defined(__AVX512F__)
  __m256i order;
  [[gnu::always_inline]] inline explicit Compression(std::uint32_t lanes)
      : mask(lanes),
        order(_mm256_cvtepu8_epi32(
            _mm_cvtsi64_si128(static_cast<long long>(kCompressTable.lanes[lanes])))) {}
#else
  [[gnu::always_inline]] inline explicit Compression(std::uint32_t lanes) : mask(lanes) {}
#endif

  [[gnu::always_inline]] inline std::uint32_t count() const {
    return static_cast<std::uint32_t>(__builtin_popcount(mask));
  }
  /// Writes kLanes words, of which the first are those with their bit in the mask.
  [[gnu::always_inline]] inline void store_words(Words x, void* to) const {
#if defined(__AVX512F__)
    // Through a register: storing from the instruction itself is slow on some machines.
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask),
                                                        reinterpret_cast<__m512i>(x)));
#elif defined(__AVX2__)
    store(_mm256_permutevar8x32_epi32(reinterpret_cast<__m256i>(x), order), to);
#else
    auto* out = static_cast<unsigned char*>(to);
    for (std::uint32_t i = 0; i < kLanes; ++i) {
      std::int32_t const word = x[i];
      __builtin_memcpy(out, &word, sizeof word);
      out += 4 * (mask >> i & 1U);
    }
#endif
  }
};

/// The bound of mask_above() for magnitudes of at least `least`, which is 0 to 2^31: 2^31 is above
/// all, as the bound 2^31 − 1.
[[gnu::always_inline]] inline Words bound_below(std::uint32_t least) {
  return all_words(least - 1U);
}

/// The lanes of the group that starts at i and that lie before `count`.
[[gnu::always_inline]] inline std::uint32_t lanes_before(std::uint32_t i, std::uint32_t count) {
  std::uint32_t const rest = count - i;
  return rest >= kLanes ? kAllLanes : (1U << rest) - 1U;
}

}  // namespace
}  // namespace gradsieve::kernels::cpu
