// SPDX-License-Identifier: Apache-2.0
#include "compressors/int8.hpp"

namespace gradsieve {

PluginInfo Int8Compressor::info() {
  return {.name = "int8",
          .kind = PluginKind::compressor,
          .payload_id = 4,
          .summary = "Sends every element in 8 bits, with one scale per block.",
          .paper =
              "Dettmers et al., ICLR 2022, arXiv:2110.02861; Alistarh et al., NeurIPS 2017, "
              "arXiv:1610.02132",
          .params = params("256", 1.0),
          .positional = "block"};
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_COMPRESSOR(int8, Int8Compressor, Int8Compressor::info());
