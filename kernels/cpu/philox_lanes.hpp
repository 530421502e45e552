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

[[gnu::always_inline]] inline PhiloxState philox_round(PhiloxState s, std::uint32_t key_low,
                                                       std::uint32_t key_high) {
  PhiloxWord const p0 = multiply_low_halves(s.c0, all_lanes(0xD2511F53U));
  PhiloxWord const p1 = multiply_low_halves(s.c2, all_lanes(0xCD9E8D57U));
  return {(p1 >> 32) ^ s.c1 ^ all_lanes(key_low), p1, (p0 >> 32) ^ s.c3 ^ all_lanes(key_high), p0};
}

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

/// Two states at a time hide the latency of the multiplication.
inline constexpr std::uint64_t kPhiloxStride = 2 * kPhiloxLanes;

/// out ← the 16-bit numbers of `num_blocks` blocks from `first_block` on, eight per block. Writes
/// whole strides: room for num_blocks rounded up to a multiple of kPhiloxStride is needed.
[[maybe_unused]] [[gnu::noinline]] void philox_rows(RandomBitsKey const& key,
                                                    std::uint64_t first_block,
                                                    std::uint64_t num_blocks, std::uint16_t* out) {
  PhiloxWord lane = {};
  for (int i = 0; i < kPhiloxLanes; ++i) lane[i] = static_cast<std::uint64_t>(i);
  for (std::uint64_t done = 0; done < num_blocks; done += kPhiloxStride) {
    PhiloxWord const a = lane + (first_block + done);
    PhiloxWord const b = a + static_cast<std::uint64_t>(kPhiloxLanes);
    PhiloxState x = {a, a >> 32, all_lanes(key.step), all_lanes(key.step >> 32)};
    PhiloxState y = {b, b >> 32, x.c2, x.c3};
    std::uint32_t key_low = key.key_low;
    std::uint32_t key_high = key.key_high;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      x = philox_round(x, key_low, key_high);
      y = philox_round(y, key_low, key_high);
      key_low += 0x9E3779B9U;
      key_high += 0xBB67AE85U;
    }
    store_blocks(x, out + 8 * done);
    store_blocks(y, out + 8 * (done + kPhiloxLanes));
  }
}

}  // namespace
}  // namespace gradsieve::kernels::cpu
