// SPDX-License-Identifier: Apache-2.0
#include "compressors/int4.hpp"

#include <string>

namespace gradsieve {

Int4Compressor::Int4Compressor(Params const& params) : BlockQuantizer(4, params) {
  if (block_elements() % 2 == 0) return;
  throw Error(Code::invalid_argument, "int4: block=" + std::to_string(block_elements()) +
                                          " is odd, and two blocks would share a byte: expected "
                                          "an even integer in [2, 65536]");
}

PluginInfo Int4Compressor::info() {
  return {.name = "int4",
          .kind = PluginKind::compressor,
          .payload_id = 5,
          .summary = "Sends every element in 4 bits, with one scale per block.",
          .paper =
              "Dettmers et al., ICLR 2022, arXiv:2110.02861; Alistarh et al., NeurIPS 2017, "
              "arXiv:1610.02132",
          .params = params("64", 2.0),
          .positional = "block"};
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_COMPRESSOR(int4, Int4Compressor, Int4Compressor::info());
