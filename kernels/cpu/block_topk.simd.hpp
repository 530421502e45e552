// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/per_target.hpp"

namespace gradsieve::kernels::cpu {

/// What compensate_chunk does, for whole blocks of a multiple of 32 elements, each of one partial
/// sum at most; norms ← Σ c² of each. Nonzero if a sum g + carry·e was not finite.
GRADSIEVE_PER_TARGET(std::uint32_t compensate_square_blocks(
    void const* gradient, ElementType type, float const* residual_in, float carry,
    std::uint64_t num_blocks, std::uint64_t block_elements, float* residual_out, double* norms))

}  // namespace gradsieve::kernels::cpu
