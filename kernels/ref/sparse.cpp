// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/sparse.hpp"

#include "kernels/ops.hpp"
#include "kernels/ref/convert.hpp"

namespace gradsieve::kernels::ref {

void take(ExecContext const&, IndexSpan indices, std::uint64_t granularity, std::span<float> x,
          std::span<float> values) noexcept {
  take_selected(indices.valid(), granularity, x, values);
}

Flags compensate_take(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                      IndexSpan indices, std::uint64_t granularity,
                      std::span<float> values) noexcept {
  Flags const flags = ref::compensate(ctx, gradient, residual);
  ref::take(ctx, indices, granularity, residual.out, values);
  return flags;
}

void scatter_add(ExecContext const&, IndexSpan indices, std::uint64_t granularity,
                 std::span<float const> values, float weight,
                 std::span<float> accumulator) noexcept {
  for_selected(indices.valid(), granularity, accumulator.size(),
               [&](std::uint64_t i, std::uint64_t position) {
                 float const product = weight * values[position];
                 accumulator[i] = canonical(accumulator[i] + product);
               });
}

bool check_indices(ExecContext const&, IndexSpan index_set, std::uint64_t universe) noexcept {
  auto const indices = index_set.valid();
  for (std::size_t i = 1; i < indices.size(); ++i) {
    if (indices[i - 1] >= indices[i]) return false;
  }
  return indices.empty() || indices.back() < universe;
}

}  // namespace gradsieve::kernels::ref
