// SPDX-License-Identifier: Apache-2.0
// The kernels of many_ops.hpp as a loop over the segments, on a backend whose calls are cheap.
#pragma once

#include <algorithm>
#include <array>

#include "kernels/many_ops.hpp"

namespace gradsieve::kernels {

/// Kernels of one backend.
struct SegmentKernels {
  CompensateFn& compensate;
  NarrowFn& narrow;
  StoreBf16Fn& store_bf16;
  AddScaledFn& add_scaled;
  ClearFn& clear;
  RetainFn& retain;
  QuantizeFusedFn& quantize_fused;
  DequantizeAddFn& dequantize_add;
  CheckScalesFn& check_scales;
  CheckClearFn& check_clear;
  WidenFn& widen;
  QuantizeFn& quantize;
  SignFn& sign;
  SignFusedFn& sign_fused;
  SignAddFn& sign_add;
};

inline std::size_t count_of(Segment const& segment) noexcept {
  return static_cast<std::size_t>(segment.num_elements);
}

inline ResidualView residual_of(Segment const& segment, EncodedArrays const& arrays) noexcept {
  std::size_t const count = count_of(segment);
  // ResidualView has one type for what is read and what is written.
  auto* const in = const_cast<float*>(arrays.residual_in);
  ResidualView view{{}, {arrays.residual_out + segment.in_residual, count}, arrays.carry};
  if (in != nullptr) view.in = {in + segment.in_residual, count};
  return view;
}

inline std::size_t code_bytes_of(Segment const& segment, int bits) noexcept {
  std::uint64_t const n = segment.num_elements;
  return static_cast<std::size_t>(bits == 8 ? n : n / 2 + n % 2);
}

inline std::size_t num_scales_of(Segment const& segment, std::uint64_t block_elements) noexcept {
  std::uint64_t const n = segment.num_elements;
  return static_cast<std::size_t>(n / block_elements + (n % block_elements != 0 ? 1 : 0));
}

/// residual ← residual − values, through a piece of stack.
inline void retain_values(SegmentKernels const& run, ExecContext const& ctx, ConstTensorView values,
                          std::span<float> residual) noexcept {
  constexpr std::uint64_t kHeld = 512;
  for (std::uint64_t begin = 0; begin < values.num_elements; begin += kHeld) {
    std::uint64_t const count = std::min(kHeld, values.num_elements - begin);
    std::array<float, kHeld> held = {};
    std::span<float> const decoded = std::span(held).first(static_cast<std::size_t>(count));
    run.add_scaled(ctx, values.slice(begin, count), 1.0F, decoded);
    run.retain(ctx, decoded, residual.subspan(static_cast<std::size_t>(begin), decoded.size()));
  }
}

/// c of a segment, to its residual.
inline Flags correct_each(SegmentKernels const& run, ExecContext const& ctx, Segment const& segment,
                          EncodedArrays const& arrays) noexcept {
  ResidualView const residual = residual_of(segment, arrays);
  ConstTensorView const gradient = arrays.gradient.slice(segment.in_gradient, segment.num_elements);
  if (!arrays.is_corrected) return run.compensate(ctx, gradient, residual);
  run.widen(ctx, gradient, residual.out);
  return 0;
}

inline Flags encode_values_each(SegmentKernels const& run, ExecContext const& ctx,
                                SegmentTable const& table, EncodedArrays const& arrays, DType type,
                                Rounding rounding, StepValue<std::uint64_t> step) noexcept {
  Flags flags = 0;
  for (Segment const& segment : table.segments) {
    ResidualView const residual = residual_of(segment, arrays);
    TensorView const values(arrays.bodies + segment.codes_begin, segment.num_elements, type);
    flags |= correct_each(run, ctx, segment, arrays);
    if (rounding == Rounding::stochastic) {
      run.store_bf16(ctx, residual.out, {segment.key, step, segment.first_element},
                     values.as<BFloat16>());
    } else {
      run.narrow(ctx, residual.out, true, values);
    }
    retain_values(run, ctx, values, residual.out);
  }
  return flags;
}

/// Where a segment is added.
inline std::span<float> opened_sums(SegmentKernels const& run, ExecContext const& ctx,
                                    Segment const& segment, DecodedArrays const& arrays) noexcept {
  std::uint64_t const begin = arrays.lies_as_residual ? segment.in_residual : segment.in_gradient;
  std::span<float> const sums{arrays.accumulator + begin, count_of(segment)};
  if (arrays.is_first) run.clear(ctx, std::as_writable_bytes(sums));
  return sums;
}

inline void add_values_each(SegmentKernels const& run, ExecContext const& ctx,
                            SegmentTable const& table, DecodedArrays const& arrays,
                            DType type) noexcept {
  for (Segment const& segment : table.segments) {
    run.add_scaled(ctx, {arrays.bodies + segment.codes_begin, segment.num_elements, type},
                   arrays.weight, opened_sums(run, ctx, segment, arrays));
  }
}

inline Flags quantize_each(SegmentKernels const& run, ExecContext const& ctx,
                           SegmentTable const& table, EncodedArrays const& arrays, int bits,
                           std::uint64_t block_elements, Rounding rounding,
                           StepValue<std::uint64_t> step) noexcept {
  Flags flags = 0;
  for (Segment const& segment : table.segments) {
    ConstTensorView const gradient =
        arrays.gradient.slice(segment.in_gradient, segment.num_elements);
    ResidualView const residual = residual_of(segment, arrays);
    RoundingKey const key = {segment.key, step, segment.first_element};
    std::span<std::byte> const codes{arrays.bodies + segment.codes_begin,
                                     code_bytes_of(segment, bits)};
    std::span<float> const scales{reinterpret_cast<float*>(arrays.bodies + segment.scales_begin),
                                  num_scales_of(segment, block_elements)};
    if (arrays.is_corrected) {
      run.quantize(ctx, gradient.as<float>(), bits, block_elements, rounding, key, codes, scales,
                   residual.out);
    } else {
      flags |= run.quantize_fused(ctx, gradient, residual, bits, block_elements, rounding, key,
                                  codes, scales);
    }
  }
  return flags;
}

inline bool is_well_formed(SegmentKernels const& run, ExecContext const& ctx,
                           Segment const& segment, std::byte const* bodies, int bits,
                           std::uint64_t block_elements) noexcept {
  std::byte const* const codes = bodies + segment.codes_begin;
  std::byte const* const scales = bodies + segment.scales_begin;
  std::byte const* const end = codes + code_bytes_of(segment, bits);
  bool const has_half_byte = bits == 4 && segment.num_elements % 2 != 0;
  if (has_half_byte && !run.check_clear(ctx, {end - 1, 1}, {}, 4)) return false;
  if (segment.num_elements != 0 && !run.check_clear(ctx, {end, scales}, {}, 0)) return false;
  return run.check_scales(ctx, {scales, num_scales_of(segment, block_elements) * sizeof(float)});
}

inline bool dequantize_add_each(SegmentKernels const& run, ExecContext const& ctx,
                                SegmentTable const& table, DecodedArrays const& arrays, int bits,
                                std::uint64_t block_elements) noexcept {
  bool const are_well_formed = std::ranges::all_of(table.segments, [&](Segment const& segment) {
    return is_well_formed(run, ctx, segment, arrays.bodies, bits, block_elements);
  });
  if (!are_well_formed) return false;
  for (Segment const& segment : table.segments) {
    run.dequantize_add(ctx, {arrays.bodies + segment.codes_begin, code_bytes_of(segment, bits)},
                       arrays.bodies + segment.scales_begin, bits, block_elements, arrays.weight,
                       opened_sums(run, ctx, segment, arrays));
  }
  return true;
}

/// The parts of a segment's body of `sign`.
template <typename Byte>
struct SignParts {
  std::span<Byte> header;
  std::span<Byte> signs;
  std::span<Byte> zeros;
  std::span<Byte> padding;
  std::span<Byte> scales;

  SignParts(Segment const& segment, Byte* bodies, std::uint64_t block_elements) noexcept {
    std::size_t const plane = static_cast<std::size_t>((segment.num_elements + 7) / 8);
    header = {bodies + segment.codes_begin, kSignHeader.size()};
    signs = {header.data() + header.size(), plane};
    zeros = {signs.data() + plane, plane};
    scales = {bodies + segment.scales_begin,
              num_scales_of(segment, block_elements) * sizeof(float)};
    padding = {zeros.data() + plane, scales.data()};
  }
};

inline Flags sign_each(SegmentKernels const& run, ExecContext const& ctx, SegmentTable const& table,
                       EncodedArrays const& arrays, std::uint64_t block_elements) noexcept {
  Flags flags = 0;
  for (Segment const& segment : table.segments) {
    if (segment.num_elements == 0) continue;
    ConstTensorView const gradient =
        arrays.gradient.slice(segment.in_gradient, segment.num_elements);
    ResidualView const residual = residual_of(segment, arrays);
    SignParts const parts(segment, arrays.bodies, block_elements);
    std::ranges::copy(kSignHeader, parts.header.begin());
    std::span<float> const scales{reinterpret_cast<float*>(parts.scales.data()),
                                  parts.scales.size() / sizeof(float)};
    std::uint32_t any_zero = 0;  // the plane of zeros is always there
    if (arrays.is_corrected) {
      run.sign(ctx, gradient.as<float>(), block_elements, parts.signs, parts.zeros, scales,
               residual.out, &any_zero);
    } else {
      flags |= run.sign_fused(ctx, gradient, residual, block_elements, parts.signs, parts.zeros,
                              scales, &any_zero);
    }
  }
  return flags;
}

inline bool is_sign_body(SegmentKernels const& run, ExecContext const& ctx, Segment const& segment,
                         SignParts<std::byte const> const& parts) noexcept {
  auto const used = static_cast<unsigned>(segment.num_elements % 8);
  bool const ends_clear = used == 0 || (run.check_clear(ctx, parts.signs.last(1), {}, used) &&
                                        run.check_clear(ctx, parts.zeros.last(1), {}, used));
  return std::ranges::equal(parts.header, kSignHeader) && ends_clear &&
         run.check_clear(ctx, parts.signs, parts.zeros, 0) &&
         run.check_clear(ctx, parts.padding, {}, 0) && run.check_scales(ctx, parts.scales);
}

inline bool sign_add_each(SegmentKernels const& run, ExecContext const& ctx,
                          SegmentTable const& table, DecodedArrays const& arrays,
                          std::uint64_t block_elements) noexcept {
  for (Segment const& segment : table.segments) {
    if (segment.num_elements == 0) continue;
    SignParts const parts(segment, arrays.bodies, block_elements);
    if (!is_sign_body(run, ctx, segment, parts)) return false;
  }
  for (Segment const& segment : table.segments) {
    if (segment.num_elements == 0) continue;
    SignParts const parts(segment, arrays.bodies, block_elements);
    run.sign_add(ctx, parts.signs.data(), parts.zeros.data(), parts.scales.data(), block_elements,
                 arrays.weight, opened_sums(run, ctx, segment, arrays));
  }
  return true;
}

}  // namespace gradsieve::kernels
