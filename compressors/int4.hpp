// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compressors/block_quantizer.hpp"

namespace gradsieve {

/// Sends every element in four bits, two to a byte, with one scale per block: q in −7 … 7.
///
/// Errors: invalid_argument if the block is odd: two shards would share a byte
class Int4Compressor final : public BlockQuantizer {
 public:
  explicit Int4Compressor(Params const& params);

  [[nodiscard]] static PluginInfo info();
};

}  // namespace gradsieve
