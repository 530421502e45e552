// SPDX-License-Identifier: Apache-2.0
// Tiles: what a thread block holds in registers at once, quads of four elements that stand
// together, one tile after the other of a run of elements.
#pragma once

#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"

namespace gradsieve::kernels::cuda {

struct TilePolicy {
  static constexpr unsigned threads = 256, items_per_thread = 4, min_blocks = 4;
};
inline constexpr unsigned kTileQuads = TilePolicy::threads * TilePolicy::items_per_thread;
inline constexpr unsigned kTileElements = kTileQuads * 4;

/// Four elements from `from`, of which `count` exist; `kAligned`: one access where all of them do.
template <bool kAligned, typename T>
__device__ Pack<T, 4> load_quad(T const* from, unsigned count) {
  if (kAligned && count == 4) return load<4>(from);
  Pack<T, 4> result = {};
#pragma unroll
  for (unsigned lane = 0; lane < 4; ++lane) {
    if (lane < count) result.at[lane] = from[lane];
  }
  return result;
}
template <bool kAligned, typename T>
__device__ void store_quad(T* to, Pack<T, 4> const& quad, unsigned count) {
  if (kAligned && count == 4) {
    store<4>(to, quad);
    return;
  }
#pragma unroll
  for (unsigned lane = 0; lane < 4; ++lane) {
    if (lane < count) to[lane] = quad.at[lane];
  }
}

/// The place of a thread's item in a tile of `size` elements, and how many of its four are there.
struct QuadPlace {
  unsigned first;
  unsigned count;

  __device__ QuadPlace(unsigned item, unsigned size)
      : first((item * TilePolicy::threads + threadIdx.x) * 4),
        count(first >= size ? 0 : min(size - first, 4U)) {}
};

/// Whole units of `unit_elements` that one thread block works on: as many as fit a tile, or one
/// that takes several tiles.
struct Units {
  std::uint64_t run_elements;  ///< of one thread block
  std::uint64_t num_runs;
  bool fits_tile;

  Units(std::uint64_t num_elements, std::uint64_t unit_elements) noexcept
      : run_elements(unit_elements >= kTileElements
                         ? unit_elements
                         : kTileElements / unit_elements * unit_elements),
        num_runs(divide_up(num_elements, run_elements)),
        fits_tile(run_elements <= kTileElements) {}
};

/// Four 16-byte accesses, or one: what load<4>() asks of an address.
template <typename T>
[[nodiscard]] bool is_quad_aligned(T const* array) noexcept {
  return reinterpret_cast<std::uintptr_t>(array) % (4 * sizeof(T)) == 0;
}

}  // namespace gradsieve::kernels::cuda
