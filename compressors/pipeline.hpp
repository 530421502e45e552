// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "gradsieve/registry.hpp"

#include "compressors/sparse_body.hpp"
#include "core/function_ref.hpp"

namespace gradsieve {

/// The stages of a chain. Only `values` must be there; `index` goes with a sparsifier that chooses
/// on each rank for itself.
struct PipelineStages {
  std::unique_ptr<Sparsifier> sparsifier;
  std::unique_ptr<Compressor> values;
  std::unique_ptr<IndexCodec> index;
  std::unique_ptr<ByteCodec> bytes;
};

/// Composes a compressor: chosen elements through a value codec, their indices through an index
/// codec, the whole body through a byte codec.
///
///   ĉ_S = values(c_S), ĉ = 0 elsewhere
///
/// Rounds:     with own indices one gather of sparse bodies. With a shared set and `none` the
/// values
///             travel in a sum, with another value codec or a byte stage in a gather without
///             indices; a set that must be agreed on has a round of its own before that.
/// Paper:      -
/// Claims:     composed: unbiased, lossless and fixed_rate if all stages are; contraction is the
/// product Payload:    docs/wire_format.md#sparse-bodies-codec-16-pipeline-with-a-sparsifier State:
/// that of the sparsifier Workspace:  the selection, two copies of its values, and what the stages
/// take; with a byte stage
///             one body
/// Edge cases: what the value codec loses of a chosen element stays in the residual
/// Errors:     corrupt_payload before the first store if a body is not exactly what a peer may send
class Pipeline final : public Compressor {
 public:
  /// Throws Error(invalid_argument) if a value codec with several rounds is given.
  explicit Pipeline(PipelineStages stages);

  [[nodiscard]] Claims claims() const noexcept override;
  [[nodiscard]] int num_rounds() const noexcept override;
  [[nodiscard]] RoundInfo round(int index, TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::vector<SlotInfo> slots(TensorInfo const& piece) const override;
  [[nodiscard]] std::size_t workspace_bytes(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::size_t settled_bytes(int index,
                                          TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::size_t sum_bytes(int index, TensorInfo const& piece,
                                      std::uint64_t step) const noexcept override;
  [[nodiscard]] std::size_t fixed_bytes(int index, TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::uint64_t step_word(TensorInfo const& piece,
                                        StepWords const& words) const noexcept override;
  [[nodiscard]] bool is_batched(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::shared_ptr<Batch const> make_batch(ExecContext const& ctx,
                                                        std::span<BatchPiece const> pieces,
                                                        MemoryResource& memory) const override;

 private:
  Status do_encode(ExecContext const& ctx, int round, TensorInfo const& piece,
                   std::span<float const> corrected, StateView state,
                   Body body) const noexcept override;
  Status do_encode_f64(ExecContext const& ctx, TensorInfo const& piece,
                       std::span<double const> gradient, Body body) const noexcept override;
  Status do_encode_with_residual(ExecContext const& ctx, int round, TensorInfo const& piece,
                                 ConstTensorView gradient, ResidualView residual, StateView state,
                                 Body body) const noexcept override;
  Status do_absorb(ExecContext const& ctx, int round, TensorInfo const& piece,
                   std::span<ConstBytes const> received, StateView state) const noexcept override;
  Status do_decode_add(ExecContext const& ctx, int round, TensorInfo const& piece, ConstBytes body,
                       float weight, StateView state,
                       std::span<float> accumulator) const noexcept override;
  Status do_decode_add_f64(ExecContext const& ctx, TensorInfo const& piece, ConstBytes body,
                           double weight, std::span<double> accumulator) const noexcept override;

  // --- encoding ---
  Status encode_own(ExecContext const& ctx, TensorInfo const& piece, ConstTensorView gradient,
                    ResidualView residual, StateView state, Body body) const noexcept;
  /// Moves the values at the indices out of c.
  using TakeShared = FunctionRef<void(std::span<std::uint32_t const>, std::span<float> values)>;
  Status encode_shared(ExecContext const& ctx, TensorInfo const& piece, std::span<float> corrected,
                       TakeShared take, StateView state, Body body) const noexcept;
  Status encode_values(ExecContext const& ctx, TensorInfo const& piece, SparseView const& selection,
                       std::span<float> residual, Body body) const noexcept;
  [[nodiscard]] bool take_room(ExecContext const& ctx, TensorInfo const& piece,
                               SparseView& selection) const noexcept;
  Status write_sparse(ExecContext const& ctx, TensorInfo const& piece, SparseView const& selection,
                      std::span<float> residual, Body body) const noexcept;

  // --- decoding ---
  Status decode_sparse(ExecContext const& ctx, TensorInfo const& piece, ConstBytes body,
                       float weight, StateView state, std::span<float> accumulator) const noexcept;
  Status read_indices(ExecContext const& ctx, TensorInfo const& piece, SparseBody const& sections,
                      StateView state, std::span<std::uint32_t>& indices) const noexcept;
  Status scatter_values(ExecContext const& ctx, TensorInfo const& piece, ConstBytes values,
                        std::span<std::uint32_t const> indices, float weight,
                        std::span<float> accumulator) const noexcept;

  // --- sizes ---
  [[nodiscard]] int values_round() const noexcept { return num_rounds() - 1; }
  [[nodiscard]] std::uint64_t granularity() const noexcept { return sparsifier_->granularity(); }
  [[nodiscard]] std::uint64_t universe(TensorInfo const& piece) const noexcept;
  [[nodiscard]] std::uint64_t padded_universe(TensorInfo const& piece) const noexcept;
  [[nodiscard]] std::uint64_t coded_universe(ExecContext const& ctx,
                                             TensorInfo const& piece) const noexcept;
  [[nodiscard]] SparseBody::Fields fixed_fields(TensorInfo const& piece) const noexcept;
  [[nodiscard]] std::uint64_t capacity_values(TensorInfo const& piece) const noexcept;
  [[nodiscard]] std::size_t value_bytes(TensorInfo const& piece,
                                        std::uint64_t count) const noexcept;
  [[nodiscard]] std::size_t raw_capacity(TensorInfo const& piece) const noexcept;
  [[nodiscard]] std::size_t raw_bytes(TensorInfo const& piece,
                                      std::uint64_t num_indices) const noexcept;

  std::unique_ptr<Sparsifier> sparsifier_;
  std::unique_ptr<Compressor> values_;
  std::unique_ptr<IndexCodec> index_;
  std::unique_ptr<ByteCodec> bytes_;
  bool shared_ = false;       ///< the index set is the same on all ranks
  bool agrees_ = false;       ///< ... and has a round of its own
  bool plain_ = false;        ///< the value codec's body is the array of f32 values
  bool sums_values_ = false;  ///< the values travel in a sum
};

}  // namespace gradsieve
