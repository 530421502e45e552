// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gradsieve/registry.hpp"

#include "compressors/half_codec.hpp"
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
/// Workspace:  4·n bytes, for what the residual loses
/// Edge cases: saturates at the largest finite bf16; what lies below the smallest becomes 0
/// Cost:       one pass over memory, with feedback as well: 8 bytes read, 6 written per element
class Bf16Compressor final : public HalfCodec {
 public:
  explicit Bf16Compressor(Params const& params);

  [[nodiscard]] Claims claims() const noexcept override;
};

}  // namespace gradsieve
