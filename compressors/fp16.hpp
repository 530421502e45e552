// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gradsieve/registry.hpp"

namespace gradsieve {

/// Sends every element as an IEEE half: 5 bits of exponent, 10 of mantissa.
///
///   ĉ = half(c), to nearest and even, at most 65504 in magnitude
///
/// Paper:      Micikevicius et al., Mixed Precision Training, ICLR 2018, arXiv:1710.03740
/// Claims:     fixed_rate, elementwise
/// Payload:    2·n bytes; docs/wire_format.md#bodies-of-value-codecs, id 3
/// State:      none
/// Workspace:  4·n bytes, for the three-pass form
/// Edge cases: saturates at ±65504; what lies below 2^−25 becomes 0
/// Cost:       one pass, 4 bytes read and 2 written per element
class Fp16Compressor final : public Compressor {
 public:
  explicit Fp16Compressor(Params const&);

  [[nodiscard]] Claims claims() const noexcept override;
  [[nodiscard]] RoundInfo round(int index, TensorInfo const& piece) const noexcept override;

 private:
  Status do_encode(ExecContext const& ctx, int round, TensorInfo const& piece,
                   std::span<float const> corrected, StateView state,
                   Body body) const noexcept override;
  Status do_decode_add(ExecContext const& ctx, int round, TensorInfo const& piece, ConstBytes body,
                       float weight, StateView state,
                       std::span<float> accumulator) const noexcept override;
};

}  // namespace gradsieve
