// SPDX-License-Identifier: Apache-2.0
#include "compressors/fp16.hpp"

#include "compressors/body_fields.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {

Fp16Compressor::Fp16Compressor(Params const&) {}

Claims Fp16Compressor::claims() const noexcept { return {.fixed_rate = true, .elementwise = true}; }

RoundInfo Fp16Compressor::round(int, TensorInfo const& piece) const noexcept {
  return {.exchange = ExchangeKind::shard_sum,
          .capacity_bytes = static_cast<std::size_t>(piece.num_elements) * sizeof(Float16)};
}

Status Fp16Compressor::do_encode(ExecContext const& ctx, int, TensorInfo const&,
                                 std::span<float const> corrected, StateView,
                                 Body body) const noexcept {
  Bytes const out = body.resize(corrected.size() * sizeof(Float16));
  if (out.empty()) return kBodyTooSmall;
  std::span<Float16> const halves{reinterpret_cast<Float16*>(out.data()), corrected.size()};
  kernels::narrow(ctx, corrected, /*saturate=*/true, TensorView(halves));
  return {};
}

Status Fp16Compressor::do_decode_add(ExecContext const& ctx, int, TensorInfo const&,
                                     ConstBytes body, float weight, StateView,
                                     std::span<float> accumulator) const noexcept {
  if (body.size() != accumulator.size() * sizeof(Float16)) {
    return {Code::corrupt_payload, "fp16: the body does not hold num_elements fp16"};
  }
  kernels::add_scaled(ctx, {body.data(), accumulator.size(), DType::f16}, weight, accumulator);
  return {};
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_COMPRESSOR(fp16, Fp16Compressor,
                              PluginInfo{
                                  .name = "fp16",
                                  .kind = PluginKind::compressor,
                                  .payload_id = 3,
                                  .summary = "Sends every element as an IEEE half, saturated.",
                                  .paper = "Micikevicius et al., ICLR 2018, arXiv:1710.03740"});
