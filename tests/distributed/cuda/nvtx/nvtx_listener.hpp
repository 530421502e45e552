// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradsieve::testing {

struct NvtxRange {
  std::string domain;
  std::string name;
  std::uint64_t payload = 0;
  bool has_ended = false;
};

/// `gsv_take_nvtx_ranges` of the listener: what came since the last call.
using TakeNvtxRanges = void(std::vector<NvtxRange>& taken);

}  // namespace gradsieve::testing
