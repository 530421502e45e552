// SPDX-License-Identifier: Apache-2.0
#include "compressors/bf16.hpp"

#include "compressors/body_fields.hpp"
#include "compressors/rounding_param.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {

Bf16Compressor::Bf16Compressor(Params const& params) : rounding_(rounding_of(params)) {}

Claims Bf16Compressor::claims() const noexcept {
  return {.fixed_rate = true,
          .unbiased = rounding_ == kernels::Rounding::stochastic,
          .elementwise = true};
}

RoundInfo Bf16Compressor::round(int, TensorInfo const& piece) const noexcept {
  return {.exchange = ExchangeKind::shard_sum,
          .capacity_bytes = static_cast<std::size_t>(piece.num_elements) * sizeof(BFloat16)};
}

Status Bf16Compressor::do_encode(ExecContext const& ctx, int, TensorInfo const& piece,
                                 std::span<float const> corrected, StateView,
                                 Body body) const noexcept {
  Bytes const out = body.resize(corrected.size() * sizeof(BFloat16));
  if (out.empty()) return kBodyTooSmall;
  std::span<BFloat16> const halves{reinterpret_cast<BFloat16*>(out.data()), corrected.size()};
  if (rounding_ == kernels::Rounding::stochastic) {
    kernels::store_bf16(ctx, corrected, rounding_key(ctx, piece), halves);
  } else {
    kernels::narrow(ctx, corrected, /*saturate=*/true, TensorView(halves));
  }
  return {};
}

Status Bf16Compressor::do_decode_add(ExecContext const& ctx, int, TensorInfo const&,
                                     ConstBytes body, float weight, StateView,
                                     std::span<float> accumulator) const noexcept {
  if (body.size() != accumulator.size() * sizeof(BFloat16)) {
    return {Code::corrupt_payload, "bf16: the body does not hold num_elements bf16"};
  }
  kernels::add_scaled(ctx, {body.data(), accumulator.size(), DType::bf16}, weight, accumulator);
  return {};
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_COMPRESSOR(bf16, Bf16Compressor,
                              PluginInfo{.name = "bf16",
                                         .kind = PluginKind::compressor,
                                         .payload_id = 2,
                                         .summary = "Sends every element as bf16.",
                                         .paper = "Gupta et al., ICML 2015, arXiv:1502.02551",
                                         .params = {rounding_param("nearest")},
                                         .positional = "rounding"});
