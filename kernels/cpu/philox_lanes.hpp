// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (core/philox.hpp) for many consecutive blocks at once. For .simd.cpp files only:
// everything is local to the file that includes it.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels/cpu/random_bits.hpp"

namespace gradsieve::kernels::cpu {
namespace {

// One block in each 64-bit lane. A word of the counter is the low half of its lane and the high
// half is whatever the last product left there: the multiplication does not look at it.
#if defined(__AVX512F__)
inline constexpr int kPhiloxLanes = 8;
#elif defined(__AVX2__)
inline constexpr int kPhiloxLanes = 4;
#else
inline constexpr int kPhiloxLanes = 2;
#endif
typedef std::uint64_t PhiloxWord __attribute__((vector_size(8 * kPhiloxLanes)));

/// Low half times low half, in each lane.
[[gnu::always_inline]] inline PhiloxWord multiply_low_halves(PhiloxWord a, PhiloxWord b) {
#if defined(__AVX512F__)
  return reinterpret_cast<PhiloxWord>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<PhiloxWord>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<PhiloxWord>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & 0xffffffffU) * (b & 0xffffffffU);
#endif
}

[[gnu::always_inline]] inline PhiloxWord all_lanes(std::uint64_t x) { return PhiloxWord{} + x; }

struct PhiloxState {
  PhiloxWord c0, c1, c2, c3;
};

struct PhiloxKeys {
  PhiloxWord low[10];
  PhiloxWord high[10];
};

inline constexpr std::uint64_t kPhiloxFirst = 0xD2511F53U;
inline constexpr std::uint64_t kPhiloxSecond = 0xCD9E8D57U;

[[gnu::always_inline]] inline PhiloxState philox_round(PhiloxState s, PhiloxKeys const& keys,
                                                       int round) {
  PhiloxWord const p0 = multiply_low_halves(s.c0, all_lanes(kPhiloxFirst));
  PhiloxWord const p1 = multiply_low_halves(s.c2, all_lanes(kPhiloxSecond));
  return {(p1 >> 32) ^ (s.c1 ^ keys.low[round]), p1, (p0 >> 32) ^ (s.c3 ^ keys.high[round]), p0};
}

/// The first three rounds. All words of the counter but the lowest are the same in all lanes, and
/// what follows from those alone is worked out once.
struct PhiloxStart {
  PhiloxWord second_of_0, third_of_0, second_of_1, third_of_2;

  PhiloxStart(RandomBitsKey const& key, PhiloxKeys const& keys, std::uint64_t block_high) {
    std::uint64_t const p1 = kPhiloxSecond * (key.step & 0xffffffffU);
    std::uint64_t const c0 = (p1 >> 32 ^ block_high ^ keys.low[0][0]) & 0xffffffffU;
    std::uint64_t const p0 = kPhiloxFirst * c0;
    second_of_0 = all_lanes(key.step >> 32) ^ keys.high[0];
    third_of_0 = all_lanes(p1) ^ keys.low[1];
    second_of_1 = all_lanes(p0 >> 32) ^ keys.high[1];
    third_of_2 = all_lanes(p0) ^ keys.high[2];
  }

  [[gnu::always_inline]] PhiloxState run(PhiloxWord block_low, PhiloxKeys const& keys) const {
    PhiloxWord const p0 = multiply_low_halves(block_low, all_lanes(kPhiloxFirst));
    PhiloxWord const p1 = multiply_low_halves((p0 >> 32) ^ second_of_0, all_lanes(kPhiloxSecond));
    PhiloxWord const q0 = multiply_low_halves((p1 >> 32) ^ third_of_0, all_lanes(kPhiloxFirst));
    PhiloxWord const q1 = multiply_low_halves(p0 ^ second_of_1, all_lanes(kPhiloxSecond));
    return {(q1 >> 32) ^ (p1 ^ keys.low[2]), q1, (q0 >> 32) ^ third_of_2, q0};
  }
};

/// The words of kPhiloxLanes blocks, block after block.
[[gnu::always_inline]] inline void store_blocks(PhiloxState s, std::uint16_t* out) {
  PhiloxWord const first = (s.c0 & 0xffffffffU) | (s.c1 << 32);
  PhiloxWord const second = (s.c2 & 0xffffffffU) | (s.c3 << 32);
#if defined(__AVX512F__)
  PhiloxWord const low = __builtin_shufflevector(first, second, 0, 8, 1, 9, 2, 10, 3, 11);
  PhiloxWord const high = __builtin_shufflevector(first, second, 4, 12, 5, 13, 6, 14, 7, 15);
#elif defined(__AVX2__)
  PhiloxWord const low = __builtin_shufflevector(first, second, 0, 4, 1, 5);
  PhiloxWord const high = __builtin_shufflevector(first, second, 2, 6, 3, 7);
#else
  PhiloxWord const low = __builtin_shufflevector(first, second, 0, 2);
  PhiloxWord const high = __builtin_shufflevector(first, second, 1, 3);
#endif
  std::memcpy(out, &low, sizeof low);
  std::memcpy(reinterpret_cast<char*>(out) + sizeof low, &high, sizeof high);
}

/// So many states at a time hide the latency of the multiplication.
inline constexpr int kPhiloxStates = 4;
inline constexpr std::uint64_t kPhiloxStride = kPhiloxStates * kPhiloxLanes;
/// Room that philox_rows needs behind the numbers asked for.
inline constexpr std::uint64_t kPhiloxSlack = 2 * 8 * kPhiloxStride;

/// out ← the 16-bit numbers of `num_blocks` blocks from `first_block` on, eight per block. Writes
/// whole strides: there is room for kPhiloxSlack numbers more.
[[maybe_unused]] [[gnu::noinline]] void philox_rows(RandomBitsKey const& key,
                                                    std::uint64_t first_block,
                                                    std::uint64_t num_blocks, std::uint16_t* out) {
  std::uint64_t const until_carry = (std::uint64_t{1} << 32) - (first_block & 0xffffffffU);
  if (num_blocks > until_carry) {
    philox_rows(key, first_block, until_carry, out);
    philox_rows(key, first_block + until_carry, num_blocks - until_carry, out + 8 * until_carry);
    return;
  }
  PhiloxKeys keys;
  for (std::uint32_t round = 0; round < 10; ++round) {
    keys.low[round] = all_lanes(key.key_low + round * 0x9E3779B9U);
    keys.high[round] = all_lanes(key.key_high + round * 0xBB67AE85U);
  }
  PhiloxStart const start(key, keys, first_block >> 32);
  PhiloxWord block = all_lanes(first_block);
  for (int i = 0; i < kPhiloxLanes; ++i) block[i] += static_cast<std::uint64_t>(i);
  for (std::uint64_t done = 0; done < num_blocks; done += kPhiloxStride) {
    PhiloxState states[kPhiloxStates];
    for (PhiloxState& state : states) {
      state = start.run(block, keys);
      block += all_lanes(kPhiloxLanes);
    }
#pragma GCC unroll 7
    for (int round = 3; round < 10; ++round) {
      for (PhiloxState& state : states) state = philox_round(state, keys, round);
    }
    for (PhiloxState const& state : states) {
      store_blocks(state, out);
      out += 8 * kPhiloxLanes;
    }
  }
}

}  // namespace
}  // namespace gradsieve::kernels::cpu
