// SPDX-License-Identifier: Apache-2.0
#include "compressors/fp16.hpp"

namespace gradsieve {

Fp16Compressor::Fp16Compressor(Params const&) : HalfCodec(DType::f16, kernels::Rounding::nearest) {}

Claims Fp16Compressor::claims() const noexcept {
  return {.fixed_rate = true, .elementwise = true, .cuda = true};
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_COMPRESSOR(fp16, Fp16Compressor,
                              PluginInfo{
                                  .name = "fp16",
                                  .kind = PluginKind::compressor,
                                  .payload_id = 3,
                                  .summary = "Sends every element as an IEEE half, saturated.",
                                  .paper = "Micikevicius et al., ICLR 2018, arXiv:1710.03740"});
