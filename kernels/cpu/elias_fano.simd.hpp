// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cpu/per_target.hpp"

namespace gradsieve::kernels::cpu {

/// Writes the low `low_bits` (1 … 31) bits of each index: ⌈count·low_bits / 8⌉ bytes.
GRADSIEVE_PER_TARGET(void pack_low_parts(std::uint32_t const* indices, std::uint64_t count,
                                         std::uint32_t low_bits, unsigned char* out))

/// A stretch of the high parts that has the ones of the indices first ≤ i < last.
struct EliasFanoChunk {
  unsigned char const* code;  ///< the whole code: the low parts stand at its start
  std::uint64_t num_code_bytes;
  std::uint32_t low_bits;
  unsigned char const* high;  ///< the stretch
  std::uint64_t num_high_bytes;
  std::uint64_t first_position;  ///< of its first bit among the high parts
  std::uint64_t first;
  std::uint64_t last;
};

/// Writes indices[first] … indices[last − 1]; false if they do not ascend strictly.
GRADSIEVE_PER_TARGET(bool unpack_indices(EliasFanoChunk const& chunk, std::uint32_t* indices))

}  // namespace gradsieve::kernels::cpu
