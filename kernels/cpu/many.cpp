// SPDX-License-Identifier: Apache-2.0
#include "kernels/many_ops.hpp"
#include "kernels/segment_loop.hpp"

namespace gradsieve::kernels::cpu {
namespace {

constexpr SegmentKernels kKernels = {compensate,   narrow,      store_bf16,     add_scaled,
                                     clear,        retain,      quantize_fused, dequantize_add,
                                     check_scales, check_clear, widen,          quantize,
                                     sign,         sign_fused,  sign_add};

}  // namespace

Flags encode_values_many(ExecContext const& ctx, SegmentTable const& table,
                         EncodedArrays const& arrays, DType type, Rounding rounding,
                         StepValue<std::uint64_t> step) noexcept {
  return encode_values_each(kKernels, ctx, table, arrays, type, rounding, step);
}

void add_values_many(ExecContext const& ctx, SegmentTable const& table, DecodedArrays const& arrays,
                     DType type) noexcept {
  add_values_each(kKernels, ctx, table, arrays, type);
}

Flags quantize_many(ExecContext const& ctx, SegmentTable const& table, EncodedArrays const& arrays,
                    int bits, std::uint64_t block_elements, Rounding rounding,
                    StepValue<std::uint64_t> step) noexcept {
  return quantize_each(kKernels, ctx, table, arrays, bits, block_elements, rounding, step);
}

bool dequantize_add_many(ExecContext const& ctx, SegmentTable const& table,
                         DecodedArrays const& arrays, int bits,
                         std::uint64_t block_elements) noexcept {
  return dequantize_add_each(kKernels, ctx, table, arrays, bits, block_elements);
}

Flags sign_many(ExecContext const& ctx, SegmentTable const& table, EncodedArrays const& arrays,
                std::uint64_t block_elements) noexcept {
  return sign_each(kKernels, ctx, table, arrays, block_elements);
}

bool sign_add_many(ExecContext const& ctx, SegmentTable const& table, DecodedArrays const& arrays,
                   std::uint64_t block_elements) noexcept {
  return sign_add_each(kKernels, ctx, table, arrays, block_elements);
}

}  // namespace gradsieve::kernels::cpu
