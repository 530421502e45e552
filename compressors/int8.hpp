// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compressors/block_quantizer.hpp"

namespace gradsieve {

/// Sends every element as a signed byte, with one scale per block: q in −127 … 127.
class Int8Compressor final : public BlockQuantizer {
 public:
  explicit Int8Compressor(Params const& params) : BlockQuantizer(8, params) {}

  [[nodiscard]] static PluginInfo info();
};

}  // namespace gradsieve
