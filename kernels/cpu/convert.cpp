// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/convert.simd.hpp"
#include "kernels/cpu/element_type.hpp"
#include "kernels/cpu/simd_dispatch.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cpu {

void widen(ExecContext const& ctx, ConstTensorView values, std::span<float> out) noexcept {
  auto* const chunk = GRADSIEVE_PICK(widen_chunk);
  for_chunks(ctx, out.size(), kGrainElements, [&](std::uint64_t begin, std::uint64_t end) {
    chunk(values.slice(begin, end - begin).data, element_type(values.dtype), end - begin,
          out.data() + begin);
  });
}

void narrow(ExecContext const& ctx, std::span<float const> values, bool saturate,
            TensorView out) noexcept {
  auto* const chunk = GRADSIEVE_PICK(narrow_chunk);
  for_chunks(ctx, values.size(), kGrainElements, [&](std::uint64_t begin, std::uint64_t end) {
    chunk(values.data() + begin, saturate, element_type(out.dtype), end - begin,
          out.slice(begin, end - begin).data);
  });
}

void add_scaled(ExecContext const& ctx, ConstTensorView values, StepValue<float> weight,
                std::span<float> accumulator) noexcept {
  auto* const chunk = GRADSIEVE_PICK(add_scaled_chunk);
  for_chunks(ctx, accumulator.size(), kGrainElements, [&](std::uint64_t begin, std::uint64_t end) {
    chunk(values.slice(begin, end - begin).data, element_type(values.dtype), weight, end - begin,
          accumulator.data() + begin);
  });
}

}  // namespace gradsieve::kernels::cpu
