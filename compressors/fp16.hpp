// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gradsieve/registry.hpp"

#include "compressors/half_codec.hpp"

namespace gradsieve {

/// Sends every element as an IEEE half: 5 bits of exponent, 10 of mantissa.
///
///   ĉ = half(c), to nearest and even, at most 65504 in magnitude
///
/// Paper:      Micikevicius et al., Mixed Precision Training, ICLR 2018, arXiv:1710.03740
/// Claims:     fixed_rate, elementwise
/// Payload:    2·n bytes; docs/wire_format.md#bodies-of-value-codecs, id 3
/// State:      none
/// Workspace:  4·n bytes, for what the residual loses
/// Edge cases: saturates at ±65504; what lies below 2^−25 becomes 0
/// Cost:       one pass over memory, with feedback as well: 8 bytes read, 6 written per element
class Fp16Compressor final : public HalfCodec {
 public:
  explicit Fp16Compressor(Params const&);

  [[nodiscard]] Claims claims() const noexcept override;
};

}  // namespace gradsieve
