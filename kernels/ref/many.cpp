// SPDX-License-Identifier: Apache-2.0
#include "kernels/many_ops.hpp"
#include "kernels/segment_loop.hpp"

namespace gradsieve::kernels::ref {

Flags compensate_many(ExecContext const& ctx, SegmentTable const& table, DType dtype,
                      StepValue<float> carry) noexcept {
  return compensate_each(compensate, ctx, table, dtype, carry);
}

Flags quantize_many(ExecContext const& ctx, SegmentTable const& table, DType dtype,
                    StepValue<float> carry, int bits, std::uint64_t block_elements,
                    Rounding rounding, StepValue<std::uint64_t> step) noexcept {
  return quantize_each(quantize_fused, ctx, table, dtype, carry, bits, block_elements, rounding,
                       step);
}

void dequantize_add_many(ExecContext const& ctx, SegmentTable const& table, int bits,
                         std::uint64_t block_elements, float weight) noexcept {
  dequantize_add_each(dequantize_add, ctx, table, bits, block_elements, weight);
}

}  // namespace gradsieve::kernels::ref
