// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gradsieve/registry.hpp"

#include "kernels/ops.hpp"

namespace gradsieve {

/// Symmetric quantization with one scale per block: what int8 and int4 have in common.
///
///   scale = max|c| / L, L = 2^(bits−1) − 1;   q = round(c / scale);   ĉ = q·scale
///
/// Paper:      Dettmers et al., 8-bit Optimizers via Block-wise Quantization, ICLR 2022,
///             arXiv:2110.02861; Alistarh et al., QSGD, NeurIPS 2017, arXiv:1610.02132, section 3.
///             Deviations: the levels are linear and the scale is the block maximum, not the
///             2-norm.
/// Claims:     fixed_rate, elementwise; unbiased with rounding=stochastic; contraction below
/// Payload:    bits·n/8 bytes and 4 per block; docs/wire_format.md#bodies-of-value-codecs, ids 4, 5
/// State:      none
/// Workspace:  0
/// Edge cases: an all-zero block has scale 0 and decodes to zeros
/// Cost:       kernels::quantize_fused: gradient and residual read, residual and codes written,
/// once
class BlockQuantizer : public Compressor {
 public:
  [[nodiscard]] Claims claims() const noexcept override;
  [[nodiscard]] RoundInfo round(int index, TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::size_t workspace_bytes(TensorInfo const&) const noexcept override { return 0; }
  [[nodiscard]] std::uint64_t block_elements() const noexcept override { return block_elements_; }
  [[nodiscard]] std::shared_ptr<Batch const> make_batch(ExecContext const& ctx,
                                                        std::span<BatchPiece const> pieces,
                                                        MemoryResource& memory) const override;

 protected:
  BlockQuantizer(int bits, Params const& params);

  [[nodiscard]] static std::vector<ParamInfo> params(std::string default_block, double least_block);

 private:
  /// Where codes and scales lie in a body of n elements.
  struct Layout {
    std::size_t code_bytes;
    std::size_t scales_begin;
    std::size_t num_bytes;
  };
  [[nodiscard]] Layout layout(std::uint64_t num_elements) const noexcept;

  Status do_encode(ExecContext const& ctx, int round, TensorInfo const& piece,
                   std::span<float const> corrected, StateView state,
                   Body body) const noexcept override;
  Status do_encode_with_residual(ExecContext const& ctx, int round, TensorInfo const& piece,
                                 ConstTensorView gradient, ResidualView residual, StateView state,
                                 Body body) const noexcept override;
  Status do_decode_add(ExecContext const& ctx, int round, TensorInfo const& piece, ConstBytes body,
                       float weight, StateView state,
                       std::span<float> accumulator) const noexcept override;
  Status open(ExecContext const& ctx, std::uint64_t num_elements, Body body, Bytes& codes,
              std::span<float>& scales) const noexcept;

  int bits_;
  std::uint64_t block_elements_;
  kernels::Rounding rounding_;
};

}  // namespace gradsieve
