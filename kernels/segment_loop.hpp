// SPDX-License-Identifier: Apache-2.0
// The kernels of many_ops.hpp as a loop over the segments, on a backend whose calls are cheap.
#pragma once

#include "kernels/many_ops.hpp"

namespace gradsieve::kernels {

inline ResidualView residual_of(Segment const& segment, StepValue<float> carry) noexcept {
  auto const count = static_cast<std::size_t>(segment.num_elements);
  // ResidualView has one type for what is read and what is written.
  auto* const in = const_cast<float*>(segment.residual_in);
  return {{in, in == nullptr ? 0 : count}, {segment.residual_out, count}, carry};
}

inline std::span<std::byte> codes_of(Segment const& segment, int bits) noexcept {
  std::uint64_t const n = segment.num_elements;
  return {segment.codes, static_cast<std::size_t>(bits == 8 ? n : n / 2 + n % 2)};
}

inline std::span<float> scales_of(Segment const& segment, std::uint64_t block_elements) noexcept {
  std::uint64_t const n = segment.num_elements;
  return {segment.scales,
          static_cast<std::size_t>(n / block_elements + (n % block_elements != 0 ? 1 : 0))};
}

inline Flags compensate_each(CompensateFn& compensate, ExecContext const& ctx,
                             SegmentTable const& table, DType dtype,
                             StepValue<float> carry) noexcept {
  Flags flags = 0;
  for (Segment const& segment : table.segments) {
    flags |= compensate(ctx, {segment.gradient, segment.num_elements, dtype},
                        residual_of(segment, carry));
  }
  return flags;
}

inline Flags quantize_each(QuantizeFusedFn& quantize_fused, ExecContext const& ctx,
                           SegmentTable const& table, DType dtype, StepValue<float> carry, int bits,
                           std::uint64_t block_elements, Rounding rounding,
                           StepValue<std::uint64_t> step) noexcept {
  Flags flags = 0;
  for (Segment const& segment : table.segments) {
    flags |= quantize_fused(ctx, {segment.gradient, segment.num_elements, dtype},
                            residual_of(segment, carry), bits, block_elements, rounding,
                            {segment.key, step, segment.first_element}, codes_of(segment, bits),
                            scales_of(segment, block_elements));
  }
  return flags;
}

inline void dequantize_add_each(DequantizeAddFn& dequantize_add, ExecContext const& ctx,
                                SegmentTable const& table, int bits, std::uint64_t block_elements,
                                float weight) noexcept {
  for (Segment const& segment : table.segments) {
    auto const scales = std::as_bytes(scales_of(segment, block_elements));
    dequantize_add(ctx, codes_of(segment, bits), scales.data(), bits, block_elements, weight,
                   {segment.accumulator, static_cast<std::size_t>(segment.num_elements)});
  }
}

}  // namespace gradsieve::kernels
