// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/ops.hpp"
#include "kernels/ref/topk.hpp"

namespace gradsieve::kernels::ref {
namespace {

double block_norm(ExecContext const& ctx, std::span<float const> block, BlockNorm norm) noexcept {
  if (norm == BlockNorm::l2) {
    double sum = 0;
    sum_squares(ctx, block, &sum);
    return sum;
  }
  float largest = 0;
  for (float const x : block) largest = std::max(largest, std::fabs(x));
  return largest;
}

}  // namespace

Flags block_topk(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                 std::uint64_t block_elements, BlockNorm norm, StepValue<std::uint64_t> num_chosen,
                 SparseView& selection) noexcept {
  std::uint64_t const k = num_chosen;
  Flags const flags = compensate(ctx, gradient, residual);
  std::span<float> const c = residual.out;
  WorkspaceScope const scope(*ctx.workspace);
  auto const norms = ctx.workspace->take<double>((c.size() + block_elements - 1) / block_elements);
  for (std::size_t b = 0; b < norms.size(); ++b) {
    auto const block = c.subspan(b * block_elements);
    norms[b] = block_norm(ctx, block.first(std::min(block.size(), block_elements)), norm);
  }
  auto const indices = selection.indices.first(k);
  choose_topk<double>(norms, indices);
  take(ctx, indices, block_elements, c, selection.values);
  bool const has_last = k != 0 && indices.back() + 1 == norms.size();
  selection.num_indices = k;
  selection.num_values =
      k * block_elements - (has_last ? norms.size() * block_elements - c.size() : 0);
  selection.granularity = block_elements;
  selection.num_overflowed = 0;
  return flags;
}

}  // namespace gradsieve::kernels::ref
