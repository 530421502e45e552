// SPDX-License-Identifier: Apache-2.0
// Words that meet a condition, moved together: the one thing in selection that compilers do not
// vectorise. For .simd.cpp files only: everything is local to the file that includes it.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace gradsieve::kernels::cpu {
namespace {

#if defined(__AVX512F__)

inline constexpr std::uint32_t kLanes = 16;
using Words = __m512i;

[[gnu::always_inline]] inline Words load_words(void const* from) {
  return _mm512_loadu_si512(from);
}
[[gnu::always_inline]] inline Words all_words(std::uint32_t x) {
  return _mm512_set1_epi32(static_cast<int>(x));
}
[[gnu::always_inline]] inline Words words_from(std::uint32_t first) {
  return _mm512_add_epi32(all_words(first),
                          _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
/// Bit i: the magnitude of float i is greater, both taken as signed integers.
[[gnu::always_inline]] inline std::uint32_t mask_above(Words x, Words bound) {
  return _mm512_cmpgt_epi32_mask(_mm512_and_si512(x, all_words(0x7fffffffU)), bound);
}
/// Writes kLanes words, of which the first are those with their bit in `mask`.
[[gnu::always_inline]] inline void store_compressed(std::uint32_t mask, Words x, void* to) {
  // Through a register: storing from the instruction itself is slow on some machines.
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), x));
}

#elif defined(__AVX2__)

inline constexpr std::uint32_t kLanes = 8;
using Words = __m256i;

[[gnu::always_inline]] inline Words load_words(void const* from) {
  return _mm256_loadu_si256(static_cast<__m256i const*>(from));
}
[[gnu::always_inline]] inline Words all_words(std::uint32_t x) {
  return _mm256_set1_epi32(static_cast<int>(x));
}
[[gnu::always_inline]] inline Words words_from(std::uint32_t first) {
  return _mm256_add_epi32(all_words(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
[[gnu::always_inline]] inline std::uint32_t mask_above(Words x, Words bound) {
  Words const is_above = _mm256_cmpgt_epi32(_mm256_and_si256(x, all_words(0x7fffffffU)), bound);
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(is_above)));
}

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

[[gnu::always_inline]] inline void store_compressed(std::uint32_t mask, Words x, void* to) {
  __m256i const lanes =
      _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(kCompressTable.lanes[mask])));
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(x, lanes));
}

#else

inline constexpr std::uint32_t kLanes = 1;
using Words = std::uint32_t;

[[gnu::always_inline]] inline Words load_words(void const* from) {
  Words word;
  std::memcpy(&word, from, sizeof word);
  return word;
}
[[gnu::always_inline]] inline Words all_words(std::uint32_t x) { return x; }
[[gnu::always_inline]] inline Words words_from(std::uint32_t first) { return first; }
[[gnu::always_inline]] inline std::uint32_t mask_above(Words x, Words bound) {
  return static_cast<std::int32_t>(x & 0x7fffffffU) > static_cast<std::int32_t>(bound) ? 1U : 0U;
}
// Stores always and lets the caller's count decide: a branch on the data costs more.
[[gnu::always_inline]] inline void store_compressed(std::uint32_t, Words x, void* to) {
  std::memcpy(to, &x, sizeof x);
}

#endif

[[gnu::always_inline]] inline std::uint32_t count_bits(std::uint32_t mask) {
  return kLanes == 1 ? mask : static_cast<std::uint32_t>(__builtin_popcount(mask));
}

/// The bound of mask_above() for magnitudes of at least `least`, which is 0 to 2^31: 2^31 is above
/// all, as the bound 2^31 − 1.
[[gnu::always_inline]] inline Words bound_below(std::uint32_t least) {
  return all_words(least - 1U);
}

/// The lanes of the group that starts at i and that lie before `count`.
[[gnu::always_inline]] inline std::uint32_t lanes_before(std::uint32_t i, std::uint32_t count) {
  std::uint32_t const rest = count - i;
  return rest >= kLanes ? (1U << (kLanes - 1) << 1) - 1U : (1U << rest) - 1U;
}

}  // namespace
}  // namespace gradsieve::kernels::cpu
