// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/ops.hpp"
#include "sparsifiers/density.hpp"

namespace gradsieve {

/// Sends the k blocks of largest norm, whole; ties go to the lower block.
///
///   k = ⌊density·⌈n/block⌉ + 1/2⌋ blocks by Σ c² (l2) or max |c| (linf)
///
/// Paper:      Fei et al., OmniReduce, SIGCOMM 2021, DOI 10.1145/3452296.3472904. Deviations: the k
///             blocks of largest norm travel, not those that are not zero.
/// Claims:     contraction 2/3·density with l2; with linf that share d of the blocks keeps at least
///             d/(d + (1 − d)·block) of the energy
/// State:      none
/// Workspace:  that of kernels::block_topk
/// Edge cases: the last block may be short
/// Cost:       kernels::block_topk
class BlocktopkSparsifier final : public Sparsifier {
 public:
  explicit BlocktopkSparsifier(Params const& params);

  [[nodiscard]] Claims claims() const noexcept override;
  [[nodiscard]] std::uint64_t capacity_indices(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::uint64_t settled_indices(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::uint64_t granularity() const noexcept override { return block_elements_; }
  [[nodiscard]] SelectRule rule() const noexcept override {
    return norm_ == kernels::BlockNorm::l2 ? SelectRule::blocks_l2 : SelectRule::blocks_linf;
  }
  [[nodiscard]] bool fills_capacity(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::uint64_t step_word(TensorInfo const& piece,
                                        StepWords const& words) const noexcept override;
  [[nodiscard]] std::size_t workspace_bytes(TensorInfo const& piece) const noexcept override;

 private:
  Status do_select(ExecContext const& ctx, TensorInfo const& piece, ConstTensorView gradient,
                   ResidualView residual, StateView state,
                   SparseView& selection) const noexcept override;
  [[nodiscard]] std::uint64_t num_blocks(TensorInfo const& piece) const noexcept;

  DensityRamp density_;
  std::uint64_t block_elements_;
  kernels::BlockNorm norm_;
};

}  // namespace gradsieve
