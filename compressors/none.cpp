// SPDX-License-Identifier: Apache-2.0
#include "compressors/none.hpp"

#include <cmath>
#include <limits>

#include "compressors/batches.hpp"
#include "compressors/body_fields.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {

Claims NoneCompressor::claims() const noexcept {
  return {.lossless = true,
          .fixed_rate = true,
          .unbiased = true,
          .elementwise = true,
          .f64 = true,
          .cuda = true,
          .contraction = 1.0};
}

RoundInfo NoneCompressor::round(int, TensorInfo const& piece) const noexcept {
  bool const is_f64 = piece.dtype == DType::f64;
  return {.exchange = ExchangeKind::sum,
          .sum_type = is_f64 ? SumType::f64 : SumType::f32,
          .capacity_bytes = static_cast<std::size_t>(piece.num_elements) * (is_f64 ? 8 : 4)};
}

std::shared_ptr<Batch const> NoneCompressor::make_batch(ExecContext const& ctx,
                                                        std::span<BatchPiece const> pieces,
                                                        MemoryResource& memory) const {
  return make_value_batch(ctx, pieces, DType::f32, kernels::Rounding::nearest, memory);
}

Status NoneCompressor::do_encode(ExecContext const& ctx, int, TensorInfo const&,
                                 std::span<float const> corrected, StateView,
                                 Body body) const noexcept {
  Bytes const out = body.resize(corrected.size_bytes());
  if (out.empty()) return kBodyTooSmall;
  kernels::widen(ctx, corrected, as_floats(out));
  return {};
}

Status NoneCompressor::do_encode_f64(ExecContext const& ctx, TensorInfo const&,
                                     std::span<double const> gradient, Body body) const noexcept {
  Bytes const out = body.resize(gradient.size_bytes());
  if (out.empty()) return kBodyTooSmall;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    double const element = gradient[i];
    if (!std::isfinite(element)) ctx.words->flags |= kStepNonFinite;
    wire::store(out.data() + i * sizeof(double),
                std::isnan(element) ? std::numeric_limits<double>::quiet_NaN() : element);
  }
  return {};
}

Status NoneCompressor::do_encode_with_residual(ExecContext const& ctx, int round,
                                               TensorInfo const& piece, ConstTensorView gradient,
                                               ResidualView residual, StateView state,
                                               Body body) const noexcept {
  raise_flags(ctx, kernels::compensate(ctx, gradient, residual));
  GRADSIEVE_RETURN_IF_ERROR(do_encode(ctx, round, piece, residual.out, state, body));
  kernels::clear(ctx, std::as_writable_bytes(residual.out));
  return {};
}

Status NoneCompressor::do_decode_add(ExecContext const& ctx, int, TensorInfo const&,
                                     ConstBytes body, float weight, StateView,
                                     std::span<float> accumulator) const noexcept {
  if (body.size() != accumulator.size_bytes()) {
    return {Code::corrupt_payload, "none: the body does not hold num_elements f32"};
  }
  kernels::add_scaled(ctx, {body.data(), accumulator.size(), DType::f32}, weight, accumulator);
  return {};
}

Status NoneCompressor::do_decode_add_f64(ExecContext const&, TensorInfo const&, ConstBytes body,
                                         double weight,
                                         std::span<double> accumulator) const noexcept {
  if (body.size() != accumulator.size_bytes()) {
    return {Code::corrupt_payload, "none: the body does not hold num_elements f64"};
  }
  for (std::size_t i = 0; i < accumulator.size(); ++i) {
    accumulator[i] += weight * wire::load<double>(body.data() + i * sizeof(double));
  }
  return {};
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_COMPRESSOR(none, NoneCompressor,
                              PluginInfo{.name = "none",
                                         .kind = PluginKind::compressor,
                                         .payload_id = 1,
                                         .summary = "Sends every element as it is.",
                                         .paper = "-"});
