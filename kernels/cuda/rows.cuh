// SPDX-License-Identifier: Apache-2.0
// Sums of what a payload with block scales decodes to. A warp takes a chunk of four rows of 128
// elements, so that one access brings the scales of all rows, and where codes are bits also those.
#pragma once

#include <cstdint>

#include "kernels/cuda/block_scales.cuh"
#include "kernels/cuda/stream.cuh"

namespace gradsieve::kernels::cuda {

struct RowsPolicy {
  static constexpr unsigned threads = 256, items_per_thread = 4, min_blocks = 4;
};
inline constexpr unsigned kRows = RowsPolicy::items_per_thread;
inline constexpr unsigned kRowElements = 128;
inline constexpr unsigned kChunkElements = kRowElements * kRows;

/// The scales of this lane's quads; all lanes of a warp call it.
__device__ inline void scales_of_chunk(BlockScales const& scales, std::uint64_t chunk,
                                       Pack<float, 4> (&of_row)[kRows]) {
  std::uint64_t const begin = chunk * kChunkElements;
  unsigned const lane = threadIdx.x % 32;
  if (scales.has_whole_rows(kRowElements)) {
    float const own = scales.at<1>(begin + lane % kRows * kRowElements).at[0];
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      float const scale = __shfl_sync(0xffffffffU, own, static_cast<int>(row));
      of_row[row] = {{scale, scale, scale, scale}};
    }
    return;
  }
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row) {
    of_row[row] = scales.at<4>(begin + row * kRowElements + lane * 4);
  }
}

/// Operation has accumulator, scales, weight and
///   auto load_chunk(std::uint64_t chunk) const;     what this lane reads of the codes of a chunk
///   auto row_of(CHUNK const&, unsigned row) const;  what it needs for its quad in a row
///   float decoded(ROW, unsigned lane, float scale) const;
///   load<1>(), finish<1>() as in stream.cuh, for the elements behind the last chunk
template <typename Operation>
__global__ void __launch_bounds__(RowsPolicy::threads, RowsPolicy::min_blocks)
    rows_kernel(Operation const operation, std::uint64_t num_elements) {
  if constexpr (requires { operation.is_left_out(); }) {
    if (operation.is_left_out()) return;
  }
  constexpr std::uint64_t kWarps = RowsPolicy::threads / 32;
  std::uint64_t const num_chunks = num_elements / kChunkElements;
  for (std::uint64_t chunk = blockIdx.x * kWarps + threadIdx.x / 32; chunk < num_chunks;
       chunk += gridDim.x * kWarps) {
    float* const first = operation.accumulator + chunk * kChunkElements + threadIdx.x % 32 * 4;
    auto const loaded = operation.load_chunk(chunk);
    Pack<float, 4> sum[kRows];
    Pack<float, 4> scales[kRows];
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) sum[row] = load<4>(first + row * kRowElements);
    scales_of_chunk(operation.scales, chunk, scales);
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      auto const codes = operation.row_of(loaded, row);
#pragma unroll
      for (unsigned lane = 0; lane < 4; ++lane) {
        float const decoded = operation.decoded(codes, lane, scales[row].at[lane]);
        float const product = operation.weight * decoded;
        sum[row].at[lane] = canonical(sum[row].at[lane] + product);
      }
      store<4>(first + row * kRowElements, sum[row]);
    }
  }
  bool seen = false;
  std::uint64_t const behind = num_chunks * kChunkElements;
  for (std::uint64_t i = behind + threadIdx.x; blockIdx.x == 0 && i < num_elements;
       i += RowsPolicy::threads) {
    operation.template finish<1>(i, operation.template load<1>(i), seen);
  }
}

/// `is_aligned`: the codes and the accumulator are where load_chunk() and load<4>() want them.
template <typename Operation>
void add_rows(ExecContext const& ctx, Operation const& operation, std::uint64_t num_elements,
              bool is_aligned) noexcept {
  if (!is_aligned) {
    stream_singly<RowsPolicy>(ctx, operation, num_elements);
  } else if (num_elements != 0) {
    constexpr std::uint64_t kTile = RowsPolicy::threads / 32 * kChunkElements;
    launch(ctx, grid_of(divide_up(num_elements, kTile)), RowsPolicy::threads, 0,
           rows_kernel<Operation>, operation, num_elements);
  }
}

}  // namespace gradsieve::kernels::cuda
