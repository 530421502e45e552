// SPDX-License-Identifier: Apache-2.0
// RoundingKey (core/philox.hpp) without its headers, for what is compiled once for each
// instruction set (per_target.hpp).
#pragma once

#include <cstdint>

namespace gradsieve::kernels::cpu {

struct RandomBitsKey {
  std::uint32_t key_low;
  std::uint32_t key_high;
  std::uint64_t step;
};

}  // namespace gradsieve::kernels::cpu
