// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gradsieve/registry.hpp"

#include "kernels/ops.hpp"

namespace gradsieve {

/// Sends every element as bf16: 8 bits of exponent, 7 of mantissa.
///
///   ĉ = bf16(c), to nearest and even, or up with the probability of the part that is cut off
///
/// Paper:      Gupta et al., Deep Learning with Limited Numerical Precision, ICML 2015,
///             arXiv:1502.02551, for the stochastic rounding
/// Claims:     fixed_rate, elementwise; unbiased with rounding=stochastic
/// Payload:    2·n bytes; docs/wire_format.md#bodies-of-value-codecs, id 2
/// State:      none
/// Workspace:  4·n bytes, for the three-pass form
/// Edge cases: saturates at the largest finite bf16; what lies below the smallest becomes 0
/// Cost:       one pass, 4 bytes read and 2 written per element
class Bf16Compressor final : public Compressor {
 public:
  explicit Bf16Compressor(Params const& params);

  [[nodiscard]] Claims claims() const noexcept override;
  [[nodiscard]] RoundInfo round(int index, TensorInfo const& piece) const noexcept override;

 private:
  Status do_encode(ExecContext const& ctx, int round, TensorInfo const& piece,
                   std::span<float const> corrected, StateView state,
                   Body body) const noexcept override;
  Status do_decode_add(ExecContext const& ctx, int round, TensorInfo const& piece, ConstBytes body,
                       float weight, StateView state,
                       std::span<float> accumulator) const noexcept override;

  kernels::Rounding rounding_;
};

}  // namespace gradsieve
