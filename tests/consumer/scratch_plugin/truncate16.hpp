// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gradsieve/registry.hpp"

namespace gradsieve {

/// Sends the upper half of every float, cut off and not rounded.
///
/// Paper:      -
/// Claims:     fixed_rate, elementwise
/// Payload:    2n bytes: the upper 16 bits of each element
/// Edge cases: a denormal below 2^-133 becomes zero
class Truncate16Compressor final : public Compressor {
 public:
  explicit Truncate16Compressor(Params const&) {}

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
