// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/bit_array.cuh"
#include "kernels/elias_fano_layout.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

__global__ void __launch_bounds__(BitPolicy::threads, BitPolicy::min_blocks)
    encode_kernel(std::uint32_t const* indices, std::uint64_t const* count, std::uint64_t room,
                  std::uint64_t universe, std::byte* out) {
  std::uint64_t const num_indices = count == nullptr ? room : min(room, *count);
  EliasFanoLayout const layout(universe, num_indices);
  BitWriter const bits(out);
  std::uint32_t const low_mask = (1U << layout.low_bits) - 1U;
  std::uint64_t const high_begin = std::uint64_t{layout.low_bytes} * 8;
  std::uint64_t const stride = std::uint64_t{gridDim.x} * BitPolicy::threads;
  std::uint64_t i = std::uint64_t{blockIdx.x} * BitPolicy::threads + threadIdx.x;
  for (; i < num_indices; i += stride) {
    std::uint32_t const index = indices[i];
    if (index >= universe) continue;
    bits.set(i * layout.low_bits, index & low_mask);
    bits.set(high_begin + (index >> layout.low_bits) + i, 1);
  }
}

struct EliasFanoDecoder {
  BitReader low;
  std::uint32_t low_bits;
  std::uint64_t universe;

  [[nodiscard]] __device__ std::uint64_t index(std::uint64_t position, std::uint64_t rank) const {
    std::uint64_t const index = (position - rank) << low_bits | low.bits(rank * low_bits, low_bits);
    return index < universe ? index : kNoIndex;
  }
};

/// The bits of the last byte of the low parts that stand for nothing.
__global__ void check_padding_kernel(BitReader low, std::uint64_t num_low_bits, StepWords* words) {
  if (num_low_bits % 8 == 0) return;
  unsigned const rest = low.bytes[num_low_bits / 8] >> (num_low_bits % 8);
  if (rest != 0 && words != nullptr) atomicOr(&words->flags, kStepCorrupt);
}

}  // namespace

// Where the parts of the code end depends on how many indices there are: with a count that only the
// device knows, `out` has room for the longest code of up to indices.room.size() of them.
void elias_fano_encode(ExecContext const& ctx, IndexSpan indices, std::uint64_t universe,
                       std::span<std::byte> out) noexcept {
  fill(ctx, out.data(), 0, out.size());
  if (indices.room.empty()) return;
  launch(ctx, grid_of(divide_up(indices.room.size(), BitPolicy::threads)), BitPolicy::threads, 0,
         encode_kernel, indices.room.data(), indices.count, std::uint64_t{indices.room.size()},
         universe, out.data());
}

bool elias_fano_decode(ExecContext const& ctx, std::span<std::byte const> code,
                       std::uint64_t universe, std::span<std::uint32_t> indices) noexcept {
  EliasFanoLayout const layout(universe, indices.size());
  if (code.size() != layout.low_bytes + layout.high_bytes) return false;
  if (indices.empty()) return true;
  std::span<std::byte const> const low = code.first(layout.low_bytes);
  EliasFanoDecoder const decoder = {BitReader(low), layout.low_bits, universe};
  launch(ctx, 1, 1, 0, check_padding_kernel, BitReader(low),
         std::uint64_t{indices.size()} * layout.low_bits, ctx.words);
  decode_ones(ctx, code.subspan(layout.low_bytes), decoder, indices);
  return check_indices(ctx, indices, universe);
}

}  // namespace gradsieve::kernels::cuda
