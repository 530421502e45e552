// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gradsieve/compressor.hpp"

#include "kernels/ops.hpp"

namespace gradsieve {

/// What bf16 and fp16 share: two bytes an element, one behind another.
class HalfCodec : public Compressor {
 public:
  [[nodiscard]] RoundInfo round(int index, TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::shared_ptr<Batch const> make_batch(ExecContext const& ctx,
                                                        std::span<BatchPiece const> pieces,
                                                        MemoryResource& memory) const override;

 protected:
  HalfCodec(DType dtype, kernels::Rounding rounding) noexcept
      : dtype_(dtype), rounding_(rounding) {}
  [[nodiscard]] kernels::Rounding rounding() const noexcept { return rounding_; }

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

  /// out ← the elements [begin, begin + corrected.size()) of the piece, rounded.
  void write(ExecContext const& ctx, TensorInfo const& piece, std::uint64_t begin,
             std::span<float const> corrected, TensorView out) const noexcept;

  DType dtype_;
  kernels::Rounding rounding_;
};

}  // namespace gradsieve
