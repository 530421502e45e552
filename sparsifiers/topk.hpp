// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparsifiers/density.hpp"

namespace gradsieve {

/// Sends the k elements of largest magnitude; ties go to the lower index.
///
///   S = the k largest |c_i|, k = ⌊density·n + 1/2⌋ in [1, n]
///
/// Paper:      Aji and Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017,
///             arXiv:1704.05021; warm-up: Lin et al., ICLR 2018, arXiv:1712.01887. Deviations: the
///             selection is exact and of a fixed size, not by a sampled threshold.
/// Claims:     contraction 2/3·density (k/n, where rounding is at its worst), fixed_rate
/// State:      none
/// Workspace:  that of kernels::topk
/// Edge cases: an element that is not finite counts as its residual; +0 and −0 are equal
/// Cost:       kernels::topk
class TopkSparsifier final : public Sparsifier {
 public:
  explicit TopkSparsifier(Params const& params);

  [[nodiscard]] Claims claims() const noexcept override;
  [[nodiscard]] SelectRule rule() const noexcept override { return SelectRule::largest; }
  [[nodiscard]] std::uint64_t capacity_indices(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::uint64_t step_word(TensorInfo const& piece,
                                        StepWords const& words) const noexcept override;
  [[nodiscard]] std::uint64_t settled_indices(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::size_t workspace_bytes(TensorInfo const& piece) const noexcept override;

 private:
  Status do_select(ExecContext const& ctx, TensorInfo const& piece, ConstTensorView gradient,
                   ResidualView residual, StateView state,
                   SparseView& selection) const noexcept override;

  DensityRamp density_;
};

}  // namespace gradsieve
