// SPDX-License-Identifier: Apache-2.0
#include "compressors/bf16.hpp"

#include "compressors/rounding_param.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {

Bf16Compressor::Bf16Compressor(Params const& params)
    : HalfCodec(DType::bf16, rounding_of(params)) {}

Claims Bf16Compressor::claims() const noexcept {
  return {.fixed_rate = true,
          .unbiased = rounding() == kernels::Rounding::stochastic,
          .elementwise = true,
          .cuda = true};
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
