// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/feedback.hpp"

#include "kernels/ref/convert.hpp"

namespace gradsieve::kernels::ref {

Flags compensate(ExecContext const&, ConstTensorView gradient, ResidualView residual) noexcept {
  Flags flags = 0;
  for (std::uint64_t i = 0; i < gradient.num_elements; ++i) {
    float const e = residual.in.empty() ? 0.0F : residual.in[i];
    residual.out[i] = compensated(element(gradient, i), residual.carry.get(), e, flags);
  }
  return flags;
}

void retain(ExecContext const&, std::span<float const> decoded,
            std::span<float> residual) noexcept {
  for (std::size_t i = 0; i < residual.size(); ++i) {
    residual[i] = canonical(residual[i] - decoded[i]);
  }
}

void store_bf16(ExecContext const&, std::span<float const> values, RoundingKey const& key,
                std::span<BFloat16> out) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t bits = std::bit_cast<std::uint32_t>(canonical(values[i]));
    if (std::isfinite(values[i])) {
      // A carry out of the low half raises the kept bits by one, with probability low / 65536.
      std::uint32_t const largest = (bits & 0x80000000U) | 0x7f7fffffU;
      bits = std::min(bits + rounding_bits(key, i), largest);
    }
    out[i].bits = static_cast<std::uint16_t>(bits >> 16);
  }
}

}  // namespace gradsieve::kernels::ref
