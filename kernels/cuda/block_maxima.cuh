// SPDX-License-Identifier: Apache-2.0
// The largest magnitude of each block of a run, gathered in shared memory. A maximum does not
// depend on the order.
#pragma once

#include <cstdint>

#include "kernels/cuda/element.cuh"

namespace gradsieve::kernels::cuda {

/// Maxima of the blocks of a run, as bits, then their scales.
struct BlockWords {
  std::uint32_t* words;
  unsigned block_elements;

  /// All lanes of a warp call it; `first` is where the quad stands in the run.
  __device__ void add(Pack<float, 4> const& c, unsigned first, unsigned count) const {
    std::uint32_t magnitude[4];
#pragma unroll
    for (unsigned lane = 0; lane < 4; ++lane) {
      magnitude[lane] = __float_as_uint(c.at[lane]) & 0x7fffffffU;  // 0 where there is none
    }
    unsigned const warp_first = first - threadIdx.x % 32 * 4;
    unsigned const block = warp_first / block_elements;
    std::uint32_t const most =
        max(max(magnitude[0], magnitude[1]), max(magnitude[2], magnitude[3]));
    if ((warp_first + 127) / block_elements == block) {
      std::uint32_t const of_warp = __reduce_max_sync(0xffffffffU, most);
      if (threadIdx.x % 32 == 0 && of_warp != 0) atomicMax(words + block, of_warp);
      return;
    }
    if (count == 0) return;
    unsigned const own = first / block_elements;
    if ((first + count - 1) / block_elements == own) {
      atomicMax(words + own, most);
      return;
    }
#pragma unroll
    for (unsigned lane = 0; lane < 4; ++lane) {
      if (lane < count) atomicMax(words + (first + lane) / block_elements, magnitude[lane]);
    }
  }
  [[nodiscard]] __device__ float scale_of(unsigned place) const {
    return __uint_as_float(words[place / block_elements]);
  }
};

}  // namespace gradsieve::kernels::cuda
