// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/elias_fano.simd.hpp"

#include "kernels/cpu/bit_lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

// --- low parts -----------------------------------------------------------------------------------

/// Two low parts in the low 2·low_bits bits; `parts` holds one index in each half.
[[gnu::always_inline]] inline std::uint64_t pair_of(std::uint64_t parts, std::uint32_t low_bits) {
  std::uint64_t const mask = (std::uint64_t{1} << low_bits) - 1;
  return (parts & mask) | (parts >> 32 & mask) << low_bits;
}

/// Low parts of at most 16 bits: eight of them fill low_bits bytes.
[[gnu::always_inline]] inline void pack_eight(std::uint32_t const* indices, std::uint32_t low_bits,
                                              std::uint64_t (&words)[2]) {
  std::uint64_t pairs[4];
  std::memcpy(pairs, indices, sizeof pairs);
  for (std::uint64_t& pair : pairs) pair = pair_of(pair, low_bits);
  std::uint64_t const first = pairs[0] | pairs[1] << (2 * low_bits);
  std::uint64_t const second = pairs[2] | pairs[3] << (2 * low_bits);
  std::uint32_t const num_bits = 4 * low_bits;
  words[0] = num_bits == 64 ? first : first | second << num_bits;
  words[1] = second >> (64 - num_bits);
}

void pack_any(std::uint32_t const* indices, std::uint64_t count, std::uint32_t low_bits,
              unsigned char* out) {
  std::uint64_t const mask = (std::uint64_t{1} << low_bits) - 1;
  std::uint64_t word = 0;
  std::uint32_t num_bits = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t const low = indices[i] & mask;
    word |= low << num_bits;
    num_bits += low_bits;
    if (num_bits < 64) continue;
    store_word(out, 8, word);
    out += 8;
    num_bits -= 64;
    word = low >> (low_bits - num_bits);
  }
  store_word(out, (num_bits + 7) / 8, word);
}

/// Reads low parts in any order.
class LowParts {
 public:
  explicit LowParts(EliasFanoChunk const& chunk)
      : code_(chunk.code), num_bytes_(chunk.num_code_bytes), low_bits_(chunk.low_bits) {
#if defined(__AVX2__)
    // Four parts are taken from each half of a register: its byte 0 is the one that the first of
    // them begins in, and four bytes from where a part begins hold all of it.
    for (std::uint32_t i = 0; i < 8; ++i) {
      std::uint32_t const bit = i < 4 ? i * low_bits_ : 4 * low_bits_ % 8 + (i - 4) * low_bits_;
      for (std::uint32_t byte = 0; byte < 4; ++byte) {
        from_byte_[4 * i + byte] = static_cast<unsigned char>(bit / 8 + byte);
      }
      from_bit_[i] = bit % 8;
    }
#endif
  }

  /// The parts of [first, last) from out on, and up to seven more; first is a multiple of eight.
  void read(std::uint64_t first, std::uint64_t last, std::uint32_t* out) const {
    std::uint64_t i = first;
#if defined(__AVX2__)
    constexpr std::uint32_t kMostBits = 25;
    __m256i const from_byte = _mm256_load_si256(reinterpret_cast<__m256i const*>(from_byte_));
    __m256i const from_bit = _mm256_load_si256(reinterpret_cast<__m256i const*>(from_bit_));
    __m256i const mask = _mm256_set1_epi32(static_cast<int>((1U << low_bits_) - 1));
    for (; low_bits_ <= kMostBits && i < last; i += 8, out += 8) {
      unsigned char const* const at = code_ + i / 8 * low_bits_;
      if (at + 32 > code_ + num_bytes_) break;
      __m256i const bytes =
          _mm256_loadu2_m128i(reinterpret_cast<__m128i const*>(at + 4 * low_bits_ / 8),
                              reinterpret_cast<__m128i const*>(at));
      __m256i const parts = _mm256_srlv_epi32(_mm256_shuffle_epi8(bytes, from_byte), from_bit);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_and_si256(parts, mask));
    }
#endif
    std::uint64_t const mask_word = (std::uint64_t{1} << low_bits_) - 1;
    for (; i < last; ++i) {
      std::uint64_t const bit = i * low_bits_;
      std::uint64_t const word = load_word(code_ + bit / 8, num_bytes_ - bit / 8);
      *out++ = static_cast<std::uint32_t>(word >> (bit % 8) & mask_word);
    }
  }

 private:
  unsigned char const* code_;
  std::uint64_t num_bytes_;
  std::uint32_t low_bits_;
#if defined(__AVX2__)
  alignas(32) unsigned char from_byte_[32];
  alignas(32) std::uint32_t from_bit_[8];
#endif
};

/// A window of low parts that moves along with the index.
class LowWindow {
 public:
  explicit LowWindow(EliasFanoChunk const& chunk) : parts_(chunk), last_(chunk.last) {}

  /// The parts of i and of the 63 behind it, as far as there are so many.
  std::uint32_t const* at(std::uint64_t i) {
    if (i + 64 > end_ && end_ < last_) {
      begin_ = i / 8 * 8;
      end_ = last_ - begin_ < kParts ? last_ : begin_ + kParts;
      parts_.read(begin_, end_, window_);
    }
    return window_ + (i - begin_);
  }

 private:
  static constexpr std::uint64_t kParts = 1024;

  LowParts parts_;
  std::uint64_t last_;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  // What lies behind the window may be loaded, never used.
  alignas(64) std::uint32_t window_[kParts + 16] = {};
};

bool ascends_strictly(std::uint32_t const* indices, std::uint64_t count) {
  std::uint32_t is_wrong = 0;
  for (std::uint64_t i = 1; i < count; ++i) is_wrong |= indices[i] <= indices[i - 1] ? 1U : 0U;
  return is_wrong == 0;
}

#if defined(__AVX2__)
/// The indices of the ones of a word; `high` is the high part of a one at its first bit. Stores
/// eight at a time, so up to seven more than there are. Returns how many there are.
[[gnu::always_inline]] inline std::uint64_t join_word(std::uint64_t word, std::uint64_t high,
                                                      std::uint32_t low_bits,
                                                      std::uint32_t const* low,
                                                      std::uint32_t* indices) {
  // The j-th one of a byte is j indices on, so its high part is less by j.
  __m256i const rank = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m128i const shift = _mm_cvtsi32_si128(static_cast<int>(low_bits));
  __m256i base = _mm256_sub_epi32(_mm256_set1_epi32(static_cast<int>(high)), rank);
  std::uint64_t found = 0;
  for (int byte = 0; byte < 8; ++byte, word >>= 8) {
    std::uint64_t const count = ones_of(word & 0xff);
    __m256i const highs =
        _mm256_sll_epi32(_mm256_add_epi32(base, positions_of(word & 0xff)), shift);
    __m256i const lows = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(low + found));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(indices + found), _mm256_or_si256(highs, lows));
    base = _mm256_add_epi32(base, _mm256_set1_epi32(8 - static_cast<int>(count)));
    found += count;
  }
  return found;
}
#endif

}  // namespace

namespace GRADSIEVE_TARGET {

void pack_low_parts(std::uint32_t const* indices, std::uint64_t count, std::uint32_t low_bits,
                    unsigned char* out) {
  // Whole words are stored and the surplus is overwritten by the next eight; towards the end it
  // would run into what another thread writes.
  std::uint64_t const num_bytes = (count * low_bits + 7) / 8;
  std::uint64_t i = 0;
  for (; low_bits <= 16 && i / 8 * low_bits + 16 <= num_bytes; i += 8) {
    std::uint64_t words[2];
    pack_eight(indices + i, low_bits, words);
    std::memcpy(out + i / 8 * low_bits, words, sizeof words);
  }
  pack_any(indices + i, count - i, low_bits, out + i / 8 * low_bits);
}

bool unpack_indices(EliasFanoChunk const& chunk, std::uint32_t* indices) {
  LowWindow window(chunk);
  std::uint64_t i = chunk.first;
  std::uint64_t position = chunk.first_position;
  for (std::uint64_t at = 0; at < chunk.num_high_bytes; at += 8, position += 64) {
    std::uint64_t word = load_word(chunk.high + at, chunk.num_high_bytes - at);
    if (word == 0) continue;
    std::uint32_t const* low = window.at(i);
#if defined(__AVX2__)
    if (i + 64 + 8 <= chunk.last) {
      i += join_word(word, position - i, chunk.low_bits, low, indices + i);
      continue;
    }
#endif
    for (; word != 0; word &= word - 1, ++i) {
      std::uint64_t const high = position + lowest_one(word) - i;
      indices[i] = static_cast<std::uint32_t>(high << chunk.low_bits) | *low++;
    }
  }
  return ascends_strictly(indices + chunk.first, chunk.last - chunk.first);
}

}  // namespace GRADSIEVE_TARGET
}  // namespace gradsieve::kernels::cpu
