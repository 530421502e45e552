// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/convert.hpp"

#include "kernels/ops.hpp"

namespace gradsieve::kernels::ref {

void widen(ExecContext const&, ConstTensorView values, std::span<float> out) noexcept {
  for (std::uint64_t i = 0; i < out.size(); ++i) out[i] = element(values, i);
}

void narrow(ExecContext const&, std::span<float const> values, bool saturate,
            TensorView out) noexcept {
  for (std::uint64_t i = 0; i < values.size(); ++i) {
    float const x = values[i];
    if (out.dtype == DType::f16) {
      out.as<Float16>()[i].bits = static_cast<std::uint16_t>(narrow_half(x, kFloat16, saturate));
    } else if (out.dtype == DType::bf16) {
      out.as<BFloat16>()[i].bits = static_cast<std::uint16_t>(narrow_half(x, kBFloat16, saturate));
    } else {
      out.as<float>()[i] = canonical(x);
    }
  }
}

void add_scaled(ExecContext const&, ConstTensorView values, StepValue<float> weight,
                std::span<float> accumulator) noexcept {
  for (std::uint64_t i = 0; i < accumulator.size(); ++i) {
    float const product = weight * element(values, i);
    accumulator[i] = canonical(accumulator[i] + product);
  }
}

}  // namespace gradsieve::kernels::ref
