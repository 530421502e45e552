// SPDX-License-Identifier: Apache-2.0
// Rows of bits, least significant first: what bitmap.cpp and elias_fano.cpp share.
#pragma once

#include <cstdint>

#include "kernels/cpu/per_target.hpp"

namespace gradsieve::kernels::cpu {

GRADSIEVE_PER_TARGET(std::uint64_t count_ones(unsigned char const* bytes, std::uint64_t num_bytes))

/// Writes the row of `num_bytes` bytes that has a one at (indices[i] >> low_bits) + i·rank_step −
/// first_bit for first ≤ i < last. These positions ascend strictly and lie within the row.
GRADSIEVE_PER_TARGET(void write_ones(std::uint32_t const* indices, std::uint64_t first,
                                     std::uint64_t last, std::uint32_t low_bits,
                                     std::uint64_t rank_step, std::uint64_t first_bit,
                                     unsigned char* out, std::uint64_t num_bytes))

/// Writes the positions of the ones, counted from first_bit; the row has exactly `count` of them.
GRADSIEVE_PER_TARGET(void read_ones(unsigned char const* bytes, std::uint64_t num_bytes,
                                    std::uint32_t first_bit, std::uint32_t* positions,
                                    std::uint64_t count))

}  // namespace gradsieve::kernels::cpu
