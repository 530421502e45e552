// SPDX-License-Identifier: Apache-2.0
#include "kernels/many_sparse_ops.hpp"
#include "kernels/sparse_segment_loop.hpp"

namespace gradsieve::kernels::cpu {
namespace {

constexpr SparseSegmentKernels kKernels = {compensate,    topk,
                                           threshold,     block_topk,
                                           randomk,       take,
                                           bitmap_encode, elias_fano_encode,
                                           bitmap_decode, elias_fano_decode,
                                           check_clear,   count_selection,
                                           scatter_add};

}  // namespace

Flags select_many(ExecContext const& ctx, std::span<SparseSegment const> segments, HeldRule rule,
                  EncodedArrays const& arrays, ChosenArrays const& chosen) noexcept {
  return select_each(kKernels, ctx, segments, rule, arrays, chosen);
}

void put_back_many(ExecContext const& ctx, std::span<SparseSegment const> segments,
                   std::uint32_t const* indices, float const* lost, float* residual) noexcept {
  put_back_each(kKernels, ctx, segments, indices, lost, residual);
}

bool sparse_add_many(ExecContext const& ctx, std::span<SparseSegment const> segments,
                     DecodedArrays const& arrays, float const* values) noexcept {
  return sparse_add_each(kKernels, ctx, segments, arrays, values);
}

}  // namespace gradsieve::kernels::cpu
