// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/bit_array.cuh"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

__global__ void __launch_bounds__(BitPolicy::threads, BitPolicy::min_blocks)
    set_bits_kernel(std::uint32_t const* indices, std::uint64_t const* count, std::uint64_t room,
                    std::uint64_t universe, std::byte* out) {
  BitWriter const bits(out);
  std::uint64_t const num_indices = count == nullptr ? room : min(room, *count);
  std::uint64_t const stride = std::uint64_t{gridDim.x} * BitPolicy::threads;
  std::uint64_t i = std::uint64_t{blockIdx.x} * BitPolicy::threads + threadIdx.x;
  for (; i < num_indices; i += stride) {
    if (indices[i] < universe) bits.set(indices[i], 1);
  }
}

struct BitmapDecoder {
  std::uint64_t universe;
  [[nodiscard]] __device__ std::uint64_t index(std::uint64_t position, std::uint64_t) const {
    return position < universe ? position : kNoIndex;
  }
};

}  // namespace

void bitmap_encode(ExecContext const& ctx, IndexSpan indices, std::uint64_t universe,
                   std::span<std::byte> out) noexcept {
  fill(ctx, out.data(), 0, out.size());
  if (indices.room.empty()) return;
  launch(ctx, grid_of(divide_up(indices.room.size(), BitPolicy::threads)), BitPolicy::threads, 0,
         set_bits_kernel, indices.room.data(), indices.count, std::uint64_t{indices.room.size()},
         universe, out.data());
}

// The length is known to the host, and a wrong one is its answer.
bool bitmap_decode(ExecContext const& ctx, std::span<std::byte const> bitmap,
                   std::uint64_t universe, std::span<std::uint32_t> indices) noexcept {
  if (bitmap.size() != divide_up(universe, 8)) return false;
  decode_ones(ctx, bitmap, BitmapDecoder{universe}, indices);
  return true;
}

}  // namespace gradsieve::kernels::cuda
