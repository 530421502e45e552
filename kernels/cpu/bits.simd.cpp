// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/bits.simd.hpp"

#include "kernels/cpu/bit_lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

/// Where the ones of a row stand, counted from its first bit.
struct Ones {
  std::uint32_t const* indices;
  std::uint32_t low_bits;
  std::uint64_t rank_step;
  std::uint64_t first_bit;

  [[gnu::always_inline]] std::uint64_t position(std::uint64_t i) const {
    return (indices[i] >> low_bits) + i * rank_step - first_bit;
  }

#if defined(__AVX2__)
  /// The ones of eight indices that lie within 64 bits, counted from the first of them.
  [[gnu::always_inline]] std::uint64_t eight(std::uint64_t i) const {
    __m256i const rank = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                            _mm256_set1_epi32(static_cast<int>(rank_step)));
    __m256i const high =
        _mm256_srl_epi32(_mm256_loadu_si256(reinterpret_cast<__m256i const*>(indices + i)),
                         _mm_cvtsi32_si128(static_cast<int>(low_bits)));
    __m256i const place = _mm256_sub_epi32(_mm256_add_epi32(high, rank),
                                           _mm256_broadcastd_epi32(_mm256_castsi256_si128(high)));
    __m256i const one = _mm256_set1_epi64x(1);
    __m256i const ones = _mm256_or_si256(
        _mm256_sllv_epi64(one, _mm256_cvtepu32_epi64(_mm256_castsi256_si128(place))),
        _mm256_sllv_epi64(one, _mm256_cvtepu32_epi64(_mm256_extracti128_si256(place, 1))));
    __m128i const halves =
        _mm_or_si128(_mm256_castsi256_si128(ones), _mm256_extracti128_si256(ones, 1));
    return static_cast<std::uint64_t>(_mm_cvtsi128_si64(halves)) |
           static_cast<std::uint64_t>(_mm_extract_epi64(halves, 1));
  }
#endif
};

/// Writes words in ascending order. The current one is stored again with each further one in it:
/// that costs less than a branch that goes the other way at the end of every word.
class WordWriter {
 public:
  explicit WordWriter(unsigned char* out) : out_(out) {}

  /// Up to 64 bits from `position` on. Stores the word that it lies in and the next.
  [[gnu::always_inline]] void write(std::uint64_t position, std::uint64_t bits) {
    std::uint64_t const at = position / 64;
    std::uint64_t const shift = position % 64;
    std::uint64_t const step = at - at_;
    std::uint64_t const kept = step == 0 ? word_ : step == 1 ? next_ : 0;
    next_ = (step == 0 ? next_ : 0) | bits >> 1 >> (63 - shift);
    word_ = kept | bits << shift;
    at_ = at;
    std::memcpy(out_ + 8 * at, &word_, sizeof word_);
    std::memcpy(out_ + 8 * at + 8, &next_, sizeof next_);
  }

 private:
  unsigned char* out_;
  std::uint64_t at_ = 0;
  std::uint64_t word_ = 0;
  std::uint64_t next_ = 0;
};

}  // namespace

namespace GRADSIEVE_TARGET {

std::uint64_t count_ones(unsigned char const* bytes, std::uint64_t num_bytes) {
  std::uint64_t count = 0;
  std::uint64_t at = 0;
  for (; at + 8 <= num_bytes; at += 8) count += ones_of(load_word(bytes + at, 8));
  return count + ones_of(load_word(bytes + at, num_bytes - at));
}

void write_ones(std::uint32_t const* indices, std::uint64_t first, std::uint64_t last,
                std::uint32_t low_bits, std::uint64_t rank_step, std::uint64_t first_bit,
                unsigned char* out, std::uint64_t num_bytes) {
  std::memset(out, 0, num_bytes);
  Ones const ones = {indices, low_bits, rank_step, first_bit};
  // Two words are stored at a time, and both have to lie within the row.
  std::uint64_t const num_bits = num_bytes < 16 ? 0 : (num_bytes / 8 - 1) * 64;
  std::uint64_t end = last;
  while (end > first && ones.position(end - 1) >= num_bits) --end;

  WordWriter writer(out);
  std::uint64_t i = first;
#if defined(__AVX2__)
  while (i + 8 <= end) {
    std::uint64_t const position = ones.position(i);
    if (ones.position(i + 7) - position < 64) {
      writer.write(position, ones.eight(i));
      i += 8;
    } else {
      for (int one = 0; one < 8; ++one) writer.write(ones.position(i++), 1);
    }
  }
#endif
  for (; i < end; ++i) writer.write(ones.position(i), 1);
  for (; i < last; ++i) {
    std::uint64_t const bit = ones.position(i);
    out[bit / 8] = static_cast<unsigned char>(out[bit / 8] | 1U << (bit % 8));
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

}  // namespace GRADSIEVE_TARGET
}  // namespace gradsieve::kernels::cpu
