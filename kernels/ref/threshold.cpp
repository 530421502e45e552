// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops.hpp"
#include "kernels/ref/topk.hpp"

namespace gradsieve::kernels::ref {

Flags threshold(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                StepValue<float> threshold, SparseView& selection) noexcept {
  Flags const flags = compensate(ctx, gradient, residual);
  std::uint64_t num_qualified = 0;
  std::uint64_t num_chosen = 0;
  for (std::size_t i = 0; i < residual.out.size(); ++i) {
    if (magnitude(residual.out[i]) < magnitude(threshold.get())) continue;
    ++num_qualified;
    if (num_chosen == selection.indices.size()) continue;
    selection.indices[num_chosen++] = static_cast<std::uint32_t>(i);
  }
  take(ctx, selection.indices.first(num_chosen), 1, residual.out, selection.values);
  selection.num_indices = num_chosen;
  selection.num_values = num_chosen;
  selection.granularity = 1;
  selection.num_overflowed = num_qualified - num_chosen;
  return flags;
}

}  // namespace gradsieve::kernels::ref
