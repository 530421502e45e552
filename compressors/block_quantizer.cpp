// SPDX-License-Identifier: Apache-2.0
#include "compressors/block_quantizer.hpp"

#include <algorithm>
#include <utility>

#include "compressors/batches.hpp"
#include "compressors/body_fields.hpp"
#include "compressors/rounding_param.hpp"

namespace gradsieve {

BlockQuantizer::BlockQuantizer(int bits, Params const& params)
    : bits_(bits),
      block_elements_(static_cast<std::uint64_t>(params.integer("block"))),
      rounding_(rounding_of(params)) {}

std::vector<ParamInfo> BlockQuantizer::params(std::string default_block, double least_block) {
  return {{.name = "block",
           .type = ParamType::integer,
           .unit = "elements",
           .default_value = std::move(default_block),
           .min = least_block,
           .max = 65536.0,
           .summary = "elements that share a scale"},
          rounding_param("nearest")};
}

Claims BlockQuantizer::claims() const noexcept {
  bool const is_stochastic = rounding_ == kernels::Rounding::stochastic;
  // The largest element of a block is met to half a step. The others cost most where c is just
  // below half a step and becomes 0. A step is max|c|/L, but up to twice that where it is denormal:
  // 1 − δ ≤ (B/L²) / (1 + (B − 1)/L²) to nearest. Rounded stochastically, an element costs at most
  // a quarter of a step squared in expectation: 1 − δ ≤ B/L².
  double const levels = bits_ == 8 ? 127.0 : 7.0;
  double const worst = static_cast<double>(block_elements_) / (levels * levels);
  double const nearest = (1.0 - 1.0 / (levels * levels)) / (1.0 + worst);
  double const contraction = is_stochastic ? std::max(0.0, 1.0 - worst) : nearest;
  constexpr double kRounding = 1.0 - 1e-6;  // of f32, in all of this
  return {.fixed_rate = true,
          .unbiased = is_stochastic,
          .elementwise = true,
          .cuda = true,
          .contraction = contraction * kRounding};
}

BlockQuantizer::Layout BlockQuantizer::layout(std::uint64_t num_elements) const noexcept {
  std::size_t const code_bytes =
      wire::bytes_for_bits(num_elements * static_cast<std::uint64_t>(bits_));
  std::size_t const scales_begin = padded_to_4(code_bytes);
  auto const num_scales = static_cast<std::size_t>(num_blocks(num_elements, block_elements_));
  return {code_bytes, scales_begin, scales_begin + num_scales * sizeof(float)};
}

RoundInfo BlockQuantizer::round(int, TensorInfo const& piece) const noexcept {
  return {.exchange = ExchangeKind::shard_sum,
          .capacity_bytes = layout(piece.num_elements).num_bytes};
}

std::shared_ptr<Batch const> BlockQuantizer::make_batch(ExecContext const& ctx,
                                                        std::span<BatchPiece const> pieces,
                                                        MemoryResource& memory) const {
  std::vector<kernels::Segment> segments = segments_of(ctx, pieces);
  for (kernels::Segment& segment : segments)
    segment.scales_begin = segment.codes_begin + layout(segment.num_elements).scales_begin;
  return make_quantizer_batch(ctx, std::move(segments), bits_, block_elements_, rounding_, memory);
}

/// The places of codes and scales in a new body, the bytes between them zeroed.
Status BlockQuantizer::open(ExecContext const& ctx, std::uint64_t num_elements, Body body,
                            Bytes& codes, std::span<float>& scales) const noexcept {
  Layout const at = layout(num_elements);
  Bytes const out = body.resize(at.num_bytes);
  if (out.empty()) return kBodyTooSmall;
  codes = out.first(at.code_bytes);
  scales = as_floats(out.subspan(at.scales_begin));
  kernels::clear(ctx, out.subspan(at.code_bytes, at.scales_begin - at.code_bytes));
  return {};
}

Status BlockQuantizer::do_encode(ExecContext const& ctx, int, TensorInfo const& piece,
                                 std::span<float const> corrected, StateView,
                                 Body body) const noexcept {
  Bytes codes;
  std::span<float> scales;
  GRADSIEVE_RETURN_IF_ERROR(open(ctx, piece.num_elements, body, codes, scales));
  kernels::quantize(ctx, corrected, bits_, block_elements_, rounding_, rounding_key(ctx, piece),
                    codes, scales, {});
  return {};
}

Status BlockQuantizer::do_encode_with_residual(ExecContext const& ctx, int, TensorInfo const& piece,
                                               ConstTensorView gradient, ResidualView residual,
                                               StateView, Body body) const noexcept {
  Bytes codes;
  std::span<float> scales;
  GRADSIEVE_RETURN_IF_ERROR(open(ctx, piece.num_elements, body, codes, scales));
  raise_flags(ctx, kernels::quantize_fused(ctx, gradient, residual, bits_, block_elements_,
                                           rounding_, rounding_key(ctx, piece), codes, scales));
  return {};
}

Status BlockQuantizer::do_decode_add(ExecContext const& ctx, int, TensorInfo const&,
                                     ConstBytes body, float weight, StateView,
                                     std::span<float> accumulator) const noexcept {
  Layout const at = layout(accumulator.size());
  if (body.size() != at.num_bytes) {
    return {Code::corrupt_payload, "the quantized body has the wrong length"};
  }
  ConstBytes const padding = body.subspan(at.code_bytes, at.scales_begin - at.code_bytes);
  if (!kernels::check_clear(ctx, padding, {}, 0)) {
    return {Code::corrupt_payload, "the padding of the quantized body is not zero"};
  }
  bool const has_half_byte = bits_ == 4 && accumulator.size() % 2 != 0;
  if (has_half_byte && !kernels::check_clear(ctx, body.subspan(at.code_bytes - 1, 1), {}, 4)) {
    return {Code::corrupt_payload, "the unused half of the last code is not zero"};
  }
  ConstBytes const scales = body.subspan(at.scales_begin);
  if (!kernels::check_scales(ctx, scales)) {
    return {Code::corrupt_payload, "a scale is negative or not finite"};
  }
  kernels::dequantize_add(ctx, body.first(at.code_bytes), scales.data(), bits_, block_elements_,
                          weight, accumulator);
  return {};
}

}  // namespace gradsieve
