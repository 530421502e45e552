// SPDX-License-Identifier: Apache-2.0
// The random numbers of a rounding: those of core/philox.hpp, for one element, four in a row or a
// whole tile.
#pragma once

#include <cstdint>

#include "core/philox.hpp"
#include "kernels/cuda/tile.cuh"

namespace gradsieve::kernels::cuda {

/// Four 16-bit numbers, element 0 in the lowest bits.
using RandomQuad = std::uint64_t;

/// The numbers of elements i ... i + kWidth − 1 of the piece; `key.step` is the step itself.
template <int kWidth>
__device__ RandomQuad rounding_quad(RoundingKey const& key, std::uint64_t i) {
  std::uint64_t const element = key.first_element + i;
  auto const words = philox(key.key, element / 8, key.step.value);
  std::uint64_t const low = words[0] | static_cast<std::uint64_t>(words[1]) << 32;
  std::uint64_t const high = words[2] | static_cast<std::uint64_t>(words[3]) << 32;
  auto const shift = static_cast<std::uint32_t>(element % 4) * 16;
  bool const starts_high = (element & 4) != 0;
  std::uint64_t const first = starts_high ? high : low;
  if (kWidth == 1 || shift == 0) return first >> shift;
  std::uint64_t next = high;
  if (starts_high) {
    auto const following = philox(key.key, element / 8 + 1, key.step.value);
    next = following[0] | static_cast<std::uint64_t>(following[1]) << 32;
  }
  return first >> shift | next << (64 - shift);
}

__device__ inline std::uint32_t random_half(RandomQuad quad, int lane) {
  return static_cast<std::uint32_t>(quad >> (16 * lane)) & 0xffffU;
}

/// u = (bits + 1/2) / 65536, as rounding_uniform().
__device__ inline float random_uniform(RandomQuad quad, int lane) {
  return (static_cast<float>(random_half(quad, lane)) + 0.5F) * 0x1p-16F;
}

/// Adds 16 random bits below the kept mantissa and cuts; no finite x becomes infinite.
__device__ inline BFloat16 stochastic_bf16(float x, RandomQuad random, int lane) {
  std::uint32_t bits = __float_as_uint(canonical(x));
  if (is_finite(x)) {
    std::uint32_t const largest = (bits & 0x80000000U) | 0x7f7fffffU;
    bits = min(bits + random_half(random, lane), largest);
  }
  return {static_cast<std::uint16_t>(bits >> 16)};
}

/// The random numbers of a thread's items. Two neighbours share the eight numbers of one draw:
/// where they start together each lane draws for half of its items and they trade.
__device__ inline void draw_tile(RoundingKey const& key, std::uint64_t tile_begin,
                                 RandomQuad (&random)[TilePolicy::items_per_thread]) {
  constexpr unsigned kItems = TilePolicy::items_per_thread;
  static_assert(kItems == 4);
  unsigned const first = threadIdx.x * 4;
  if ((key.first_element + tile_begin) % 8 != 0) {
#pragma unroll
    for (unsigned item = 0; item < kItems; ++item) {
      random[item] = rounding_quad<4>(key, tile_begin + first + item * TilePolicy::threads * 4);
    }
    return;
  }
  bool const is_odd = threadIdx.x % 2 != 0;
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    unsigned const item = is_odd ? half + 2 : half;
    std::uint64_t const i = tile_begin + first + item * TilePolicy::threads * 4;
    auto const words = philox(key.key, (key.first_element + i) / 8, key.step.value);
    RandomQuad const low = words[0] | static_cast<RandomQuad>(words[1]) << 32;
    RandomQuad const high = words[2] | static_cast<RandomQuad>(words[3]) << 32;
    RandomQuad const own = is_odd ? high : low;
    RandomQuad const theirs = __shfl_xor_sync(0xffffffffU, is_odd ? low : high, 1);
    random[half] = is_odd ? theirs : own;
    random[half + 2] = is_odd ? own : theirs;
  }
}

}  // namespace gradsieve::kernels::cuda
