// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/per_target.hpp"

namespace gradsieve::kernels::cpu {

GRADSIEVE_PER_TARGET(void widen_chunk(void const* values, ElementType type, std::uint64_t count,
                                      float* out))
GRADSIEVE_PER_TARGET(void narrow_chunk(float const* values, bool saturate, ElementType type,
                                       std::uint64_t count, void* out))
GRADSIEVE_PER_TARGET(void add_scaled_chunk(void const* values, ElementType type, float weight,
                                           std::uint64_t count, float* accumulator))

}  // namespace gradsieve::kernels::cpu
