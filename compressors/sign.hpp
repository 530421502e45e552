// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "gradsieve/registry.hpp"

namespace gradsieve {

/// Sends the sign of every element, with one scale per block and a true zero.
///
///   scale = mean of |c| over the elements of the block that are not 0;   ĉ = scale·sign(c),
///   sign(0) = 0
///
/// Paper:      Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019, arXiv:1901.09847,
///             algorithm 1. Deviations: one scale per block, and an element that is 0 stays 0, so
///             that a parameter without a gradient does not move.
/// Claims:     contraction 3/4·1/block, elementwise
/// Payload:    4 + n/8 bytes, n/8 more if an element is 0, and 4 per block;
///             docs/wire_format.md#bodies-of-value-codecs, id 6
/// State:      none
/// Workspace:  4 bytes per block
/// Edge cases: an all-zero block has scale 0
/// Cost:       kernels::sign_fused: gradient and residual read, residual and planes written
/// Errors:     invalid_argument if the block is not a multiple of 8: two shards would share a byte
class SignCompressor final : public Compressor {
 public:
  explicit SignCompressor(Params const& params);

  [[nodiscard]] Claims claims() const noexcept override;
  [[nodiscard]] RoundInfo round(int index, TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::size_t workspace_bytes(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::uint64_t block_elements() const noexcept override { return block_elements_; }
  [[nodiscard]] std::shared_ptr<Batch const> make_batch(ExecContext const& ctx,
                                                        std::span<BatchPiece const> pieces,
                                                        MemoryResource& memory) const override;

 private:
  Status do_encode(ExecContext const& ctx, int round, TensorInfo const& piece,
                   std::span<float const> corrected, StateView state,
                   Body body) const noexcept override;
  Status do_encode_with_residual(ExecContext const& ctx, int round, TensorInfo const& piece,
                                 ConstTensorView gradient, ResidualView residual, StateView state,
                                 Body body) const noexcept override;
  Status do_decode_add(ExecContext const& ctx, int round, TensorInfo const& piece, ConstBytes body,
                       float weight, StateView state,
                       std::span<float> accumulator) const noexcept override;

  struct Draft;
  Status open(ExecContext const& ctx, std::uint64_t num_elements, Body body,
              Draft& draft) const noexcept;
  void close(ExecContext const& ctx, Draft const& draft, std::uint64_t num_elements,
             Body body) const noexcept;

  std::uint64_t block_elements_;
};

}  // namespace gradsieve
