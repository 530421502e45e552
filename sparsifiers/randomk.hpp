// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparsifiers/density.hpp"

namespace gradsieve {

/// Sends one random element of each of k strata, the same on all ranks.
///
///   stratum j = [⌊j·n/k⌋, ⌊(j+1)·n/k⌋), one element of it drawn uniformly from (seed, tensor,
///   step) without feedback the value is multiplied by the size of its stratum
///
/// Paper:      Stich et al., Sparsified SGD with Memory, NeurIPS 2018, arXiv:1809.07599; Wangni et
///             al., NeurIPS 2018, arXiv:1710.09854. Deviations: stratified, so that indices are
///             distinct and ascending and each draw is O(1).
/// Claims:     shared_indices, fixed_rate; without feedback unbiased, with it contraction
///             d/(3/2 + d) for density d, in expectation. A held set is unbiased over the draws,
///             but not over the steps that share it, so hold above 1 does not claim it.
/// State:      none; hold=T draws anew at the steps that T divides
/// Workspace:  0
/// Edge cases: density 1 sends everything
/// Cost:       k draws, k elements read and written
class RandomkSparsifier final : public Sparsifier {
 public:
  explicit RandomkSparsifier(Params const& params);

  [[nodiscard]] Claims claims() const noexcept override;
  [[nodiscard]] SelectRule rule() const noexcept override { return SelectRule::drawn; }
  [[nodiscard]] std::uint64_t capacity_indices(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::uint64_t step_word(TensorInfo const& piece,
                                        StepWords const& words) const noexcept override;
  [[nodiscard]] std::uint64_t settled_indices(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::uint64_t num_shared(TensorInfo const& piece,
                                         std::uint64_t step) const noexcept override;
  Status shared_set(ExecContext const& ctx, TensorInfo const& piece, StateView state,
                    std::span<std::uint32_t> indices,
                    std::uint64_t& num_indices) const noexcept override;
  [[nodiscard]] bool rescales() const noexcept override { return rescales_; }
  void rescale(ExecContext const& ctx, TensorInfo const& piece,
               std::span<float> values) const noexcept override;

 private:
  DensityRamp density_;
  std::uint64_t hold_steps_;
  bool rescales_;
};

}  // namespace gradsieve
