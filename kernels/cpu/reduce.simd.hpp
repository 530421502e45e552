// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cpu/per_target.hpp"

namespace gradsieve::kernels::cpu {

GRADSIEVE_PER_TARGET(void scale_chunk(float factor, std::uint64_t count, float* values))

/// Σ x² of each block of at most kSumBlockElements, in the eight lanes of SumSquaresFn. The last
/// block may be short.
GRADSIEVE_PER_TARGET(void sum_squares_blocks(float const* values, std::uint64_t num_elements,
                                             std::uint64_t block_elements, double* block_sums))
inline constexpr std::uint64_t kSumBlockElements = 4096;

/// The largest |x| of finite x, as bits.
GRADSIEVE_PER_TARGET(std::uint32_t largest_magnitude(float const* values, std::uint64_t count))

}  // namespace gradsieve::kernels::cpu
