// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/bits.simd.hpp"

#include "kernels/cpu/bit_lanes.hpp"

namespace gradsieve::kernels::cpu::GRADSIEVE_TARGET {

std::uint64_t count_ones(unsigned char const* bytes, std::uint64_t num_bytes) {
  std::uint64_t count = 0;
  std::uint64_t at = 0;
  for (; at + 8 <= num_bytes; at += 8) count += ones_of(load_word(bytes + at, 8));
  return count + ones_of(load_word(bytes + at, num_bytes - at));
}

void write_ones(std::uint32_t const* indices, std::uint64_t first, std::uint64_t last,
                std::uint32_t low_bits, std::uint64_t rank_step, std::uint64_t first_bit,
                unsigned char* out, std::uint64_t num_bytes) {
  std::uint64_t i = first;
  std::uint64_t word_begin = first_bit;
  for (std::uint64_t at = 0; at < num_bytes; at += 8, word_begin += 64) {
    std::uint64_t word = 0;
    for (; i < last; ++i) {
      std::uint64_t const bit = (indices[i] >> low_bits) + i * rank_step - word_begin;
      if (bit >= 64) break;
      word |= std::uint64_t{1} << bit;
    }
    store_word(out + at, num_bytes - at, word);
  }
}

void read_ones(unsigned char const* bytes, std::uint64_t num_bytes, std::uint32_t first_bit,
               std::uint32_t* positions, std::uint64_t count) {
  std::uint64_t found = 0;
  for (std::uint64_t at = 0; at < num_bytes; at += 8, first_bit += 64) {
    std::uint64_t word = load_word(bytes + at, num_bytes - at);
#if defined(__AVX2__)
    // Eight lanes are stored for each byte and the surplus is overwritten by the next. It must stay
    // within our own part of the array: another thread writes what lies behind.
    constexpr std::uint64_t kDenseWord = 12;
    if (ones_of(word) >= kDenseWord && found + 64 + 8 <= count) {
      __m256i base = _mm256_set1_epi32(static_cast<int>(first_bit));
      for (int byte = 0; byte < 8; ++byte, word >>= 8) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(positions + found),
                            _mm256_add_epi32(positions_of(word & 0xff), base));
        base = _mm256_add_epi32(base, _mm256_set1_epi32(8));
        found += ones_of(word & 0xff);
      }
      continue;
    }
#endif
    for (; word != 0 && found < count; word &= word - 1) {
      positions[found++] = first_bit + lowest_one(word);
    }
  }
}

}  // namespace gradsieve::kernels::cpu::GRADSIEVE_TARGET
