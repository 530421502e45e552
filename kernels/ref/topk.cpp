// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/topk.hpp"

#include "kernels/ops.hpp"

namespace gradsieve::kernels::ref {

Flags topk(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
           StepValue<std::uint64_t> k, SparseView& selection) noexcept {
  Flags const flags = compensate(ctx, gradient, residual);
  auto const indices = selection.indices.first(k);
  choose_topk<float>(residual.out, indices);
  take(ctx, indices, 1, residual.out, selection.values.first(k));
  selection.num_indices = k;
  selection.num_values = k;
  selection.granularity = 1;
  selection.num_overflowed = 0;
  return flags;
}

}  // namespace gradsieve::kernels::ref
