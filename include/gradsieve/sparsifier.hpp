// SPDX-License-Identifier: Apache-2.0
// A sparsifier answers one question: which elements travel?
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gradsieve/compressor.hpp"

namespace gradsieve {

/// What a sparsifier chooses, where a kernel for many small pieces knows it; step_word() says the
/// rest.
enum class SelectRule : std::uint8_t {
  other,
  largest,    ///< as many of the largest elements as the word says
  reached,    ///< the first elements whose magnitude is at least the word, a float
  blocks_l2,  ///< as many of the blocks of largest norm as the word says
  blocks_linf,
  drawn,  ///< one of each stratum, by shared_draw_key() and the word as the step
};

/// Immutable; what it remembers is in declared slots. `pipeline` turns every sparsifier into a
/// compressor: sparsifier | value codec | index codec.
class Sparsifier {
 public:
  virtual ~Sparsifier() = default;

  /// shared_indices, unbiased, contraction, fixed_rate (the count follows from size and step
  /// alone).
  [[nodiscard]] virtual Claims claims() const noexcept = 0;
  /// Most indices that a selection from this piece can hold, over all steps.
  [[nodiscard]] virtual std::uint64_t capacity_indices(TensorInfo const& piece) const noexcept = 0;
  /// The same once a density ramp is over.
  [[nodiscard]] virtual std::uint64_t settled_indices(TensorInfo const& piece) const noexcept {
    return capacity_indices(piece);
  }
  /// True if every selection has exactly capacity_indices().
  [[nodiscard]] virtual bool fills_capacity(TensorInfo const& piece) const noexcept {
    return claims().fixed_rate && settled_indices(piece) == capacity_indices(piece);
  }
  /// Elements that one index stands for.
  [[nodiscard]] virtual std::uint64_t granularity() const noexcept { return 1; }
  [[nodiscard]] virtual SelectRule rule() const noexcept { return SelectRule::other; }
  [[nodiscard]] virtual std::vector<SlotInfo> slots(TensorInfo const&) const { return {}; }
  [[nodiscard]] virtual std::size_t workspace_bytes(TensorInfo const&) const noexcept { return 0; }
  /// As Compressor::step_word().
  [[nodiscard]] virtual std::uint64_t step_word(TensorInfo const&,
                                                StepWords const&) const noexcept {
    return 0;
  }

  /// Own indices (claims().shared_indices is false): compensates, chooses, takes.
  /// selection ← the chosen c; residual.out ← c with zeros where chosen.
  Status select(ExecContext const& ctx, TensorInfo const& piece, ConstTensorView gradient,
                ResidualView residual, StateView state, SparseView& selection) const noexcept;

  // --- shared indices only ---

  /// True if the set must be agreed in a round of its own, before the values travel.
  [[nodiscard]] virtual bool needs_agreement() const noexcept { return false; }
  /// Capacity of that round's body.
  [[nodiscard]] virtual std::size_t agreement_bytes(TensorInfo const&) const noexcept { return 0; }
  /// Indices in the shared set of this step; the same on every rank.
  [[nodiscard]] virtual std::uint64_t num_shared(TensorInfo const& piece,
                                                 std::uint64_t step) const noexcept {
    static_cast<void>(step);
    return capacity_indices(piece);
  }
  /// This rank's word in the agreement (a leader writes its indices, the others nothing).
  virtual Status propose(ExecContext const&, TensorInfo const&, std::span<float const> corrected,
                         StateView, Body) const noexcept;
  /// Reads the bodies of all ranks into the slots. Code::corrupt_payload before any store.
  virtual Status agree(ExecContext const&, TensorInfo const&, std::span<ConstBytes const> received,
                       StateView) const noexcept;
  /// The shared set of this step, ascending, into `indices`.
  virtual Status shared_set(ExecContext const&, TensorInfo const&, StateView,
                            std::span<std::uint32_t> indices,
                            std::uint64_t& num_indices) const noexcept;
  /// True if rescale() changes anything.
  [[nodiscard]] virtual bool rescales() const noexcept { return false; }
  /// Multiplies the taken values so that the result is unbiased; nothing with feedback.
  virtual void rescale(ExecContext const&, TensorInfo const&,
                       std::span<float> values) const noexcept {
    static_cast<void>(values);
  }

 private:
  virtual Status do_select(ExecContext const&, TensorInfo const&, ConstTensorView, ResidualView,
                           StateView, SparseView&) const noexcept;
};

}  // namespace gradsieve
