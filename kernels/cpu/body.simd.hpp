// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cpu/per_target.hpp"

namespace gradsieve::kernels::cpu {

/// The largest of `count` words at any address.
GRADSIEVE_PER_TARGET(std::uint32_t largest_word(void const* words, std::uint64_t count))

/// Whether a bit is set in a byte that is also set in its byte of `mask`, which may be null: all.
GRADSIEVE_PER_TARGET(bool any_bit(unsigned char const* bytes, unsigned char const* mask,
                                  std::uint64_t count))

}  // namespace gradsieve::kernels::cpu
