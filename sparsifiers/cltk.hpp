// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparsifiers/density.hpp"

namespace gradsieve {

/// Sends the elements that a leader chose: its own top-k. The lead goes round.
///
///   leader of step t = ⌊t/hold⌋ mod P;   S = the k largest |c_i| of the leader, kept for `hold`
///   steps
///
/// Paper:      Chen et al., ScaleCom, NeurIPS 2020, arXiv:2104.11125, algorithm 1. Deviations: no
///             low-pass filter on the residual; the leader selects after this step's gradient is
///             in.
/// Claims:     shared_indices
/// Payload:    an agreement round (docs/wire_format.md#agreement-rounds), then the values
/// State:      16 + 4·k bytes, replicated: the window of steps, the count and the set
/// Workspace:  4·n + 8·k bytes and that of kernels::topk
/// Edge cases: a step that was rolled back left no set behind: the next one agrees on a new one,
///             decided from the agreed state and so on all ranks alike
/// Cost:       kernels::topk on the leader; k elements read and written on all
class CltkSparsifier final : public Sparsifier {
 public:
  explicit CltkSparsifier(Params const& params);

  [[nodiscard]] Claims claims() const noexcept override { return {.shared_indices = true}; }
  [[nodiscard]] std::uint64_t capacity_indices(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::uint64_t settled_indices(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::vector<SlotInfo> slots(TensorInfo const& piece) const override;
  [[nodiscard]] std::size_t workspace_bytes(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] bool needs_agreement() const noexcept override { return true; }
  [[nodiscard]] std::size_t agreement_bytes(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::uint64_t num_shared(TensorInfo const& piece,
                                         std::uint64_t step) const noexcept override;
  Status propose(ExecContext const& ctx, TensorInfo const& piece, std::span<float const> corrected,
                 StateView state, Body body) const noexcept override;
  Status agree(ExecContext const& ctx, TensorInfo const& piece,
               std::span<ConstBytes const> received, StateView state) const noexcept override;
  Status shared_set(ExecContext const& ctx, TensorInfo const& piece, StateView state,
                    std::span<std::uint32_t> indices,
                    std::uint64_t& num_indices) const noexcept override;

 private:
  [[nodiscard]] int leader(ExecContext const& ctx) const noexcept;
  [[nodiscard]] bool holds_set(ExecContext const& ctx, SlotView const& slot) const noexcept;
  Status write_new_set(ExecContext const& ctx, TensorInfo const& piece,
                       std::span<float const> corrected, Body body) const noexcept;
  Status read_new_set(ExecContext const& ctx, TensorInfo const& piece, ConstBytes body,
                      SlotView const& slot) const noexcept;

  DensityRamp density_;
  std::uint64_t hold_steps_;
};

}  // namespace gradsieve
