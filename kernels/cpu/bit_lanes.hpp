// SPDX-License-Identifier: Apache-2.0
// Words of a row of bits, and where the ones of a byte stand. For .simd.cpp files only: everything
// is local to the file that includes it.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace gradsieve::kernels::cpu {
namespace {

/// Eight bytes, or the fewer that are there and zeros.
[[gnu::always_inline]] inline std::uint64_t load_word(unsigned char const* bytes,
                                                      std::uint64_t num_bytes) {
  std::uint64_t word = 0;
  if (num_bytes >= sizeof word) {
    std::memcpy(&word, bytes, sizeof word);
  } else {
    std::memcpy(&word, bytes, num_bytes);
  }
  return word;
}

[[gnu::always_inline]] inline void store_word(unsigned char* bytes, std::uint64_t num_bytes,
                                              std::uint64_t word) {
  std::memcpy(bytes, &word, num_bytes < sizeof word ? num_bytes : sizeof word);
}

[[gnu::always_inline]] inline std::uint32_t lowest_one(std::uint64_t word) {
  return static_cast<std::uint32_t>(__builtin_ctzll(word));
}

[[gnu::always_inline]] inline std::uint64_t ones_of(std::uint64_t word) {
  return static_cast<std::uint64_t>(__builtin_popcountll(word));
}

#if defined(__AVX2__)
struct PositionTable {
  alignas(64) unsigned char of_byte[256][8] = {};
  constexpr PositionTable() {
    for (unsigned byte = 0; byte < 256; ++byte) {
      int found = 0;
      for (unsigned char bit = 0; bit < 8; ++bit) {
        if ((byte >> bit & 1U) != 0) of_byte[byte][found++] = bit;
      }
    }
  }
};
constexpr PositionTable kPositions;

/// Where the ones of a byte stand; the lanes behind them are 0.
[[gnu::always_inline]] inline __m256i positions_of(std::uint64_t byte) {
  return _mm256_cvtepu8_epi32(
      _mm_loadl_epi64(reinterpret_cast<__m128i const*>(kPositions.of_byte[byte])));
}
#endif

}  // namespace
}  // namespace gradsieve::kernels::cpu
