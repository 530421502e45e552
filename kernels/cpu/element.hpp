// SPDX-License-Identifier: Apache-2.0
// DType without its header, for what is compiled once for each instruction set (per_target.hpp).
#pragma once

#include <cstdint>

namespace gradsieve::kernels::cpu {

/// The types a gradient can have, with the values of DType.
enum class ElementType : std::uint8_t { f32 = 0, f16 = 1, bf16 = 2 };

}  // namespace gradsieve::kernels::cpu
