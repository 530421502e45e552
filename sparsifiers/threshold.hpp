// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gradsieve/registry.hpp"

namespace gradsieve {

/// Sends every element whose magnitude has reached a threshold.
///
///   S = { i : |c_i| ≥ value }, of which the first max_density·n by index
///
/// Paper:      Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing,
///             INTERSPEECH 2015. Deviations: what is sent is c itself, not ±value.
/// Claims:     none
/// State:      none
/// Workspace:  0
/// Edge cases: equality travels; what overflows max_density stays in the residual and is counted
/// Cost:       kernels::threshold, one pass
class ThresholdSparsifier final : public Sparsifier {
 public:
  explicit ThresholdSparsifier(Params const& params);

  [[nodiscard]] Claims claims() const noexcept override { return {.cuda = true}; }
  [[nodiscard]] SelectRule rule() const noexcept override { return SelectRule::reached; }
  [[nodiscard]] std::uint64_t capacity_indices(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::uint64_t step_word(TensorInfo const& piece,
                                        StepWords const& words) const noexcept override;

 private:
  [[nodiscard]] float threshold(StepWords const& words) const noexcept;
  Status do_select(ExecContext const& ctx, TensorInfo const& piece, ConstTensorView gradient,
                   ResidualView residual, StateView state,
                   SparseView& selection) const noexcept override;

  float value_;
  double max_density_;
};

}  // namespace gradsieve
