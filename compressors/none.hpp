// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gradsieve/registry.hpp"

namespace gradsieve {

/// Sends every element as it is, in f32, or in f64 where the gradient is f64.
///
///   ĉ = c
///
/// Paper:      -
/// Claims:     lossless, unbiased, contraction 1, fixed_rate, elementwise, f64; summable in f32 and
/// f64 Payload:    4·n bytes, 8·n for f64; docs/wire_format.md#bodies-of-value-codecs, id 1 State:
/// none; the residual stays zero Workspace:  0 Edge cases: a NaN is sent as the canonical one Cost:
/// one pass, 4 bytes read and 4 written per element
class NoneCompressor final : public Compressor {
 public:
  explicit NoneCompressor(Params const&) {}

  [[nodiscard]] Claims claims() const noexcept override;
  [[nodiscard]] RoundInfo round(int index, TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::size_t workspace_bytes(TensorInfo const&) const noexcept override { return 0; }
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
  Status do_decode_add(ExecContext const& ctx, int round, TensorInfo const& piece, ConstBytes body,
                       float weight, StateView state,
                       std::span<float> accumulator) const noexcept override;
  Status do_decode_add_f64(ExecContext const& ctx, TensorInfo const& piece, ConstBytes body,
                           double weight, std::span<double> accumulator) const noexcept override;
};

}  // namespace gradsieve
