// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/per_target.hpp"

namespace gradsieve::kernels::cpu {

/// residual_in may be null (zeros) or equal residual_out. Returns nonzero if a sum was not finite.
GRADSIEVE_PER_TARGET(std::uint32_t compensate_chunk(void const* gradient, ElementType type,
                                                    float const* residual_in, float carry,
                                                    std::uint64_t count, float* residual_out))
GRADSIEVE_PER_TARGET(void retain_chunk(float const* decoded, std::uint64_t count, float* residual))
/// `random` holds 16 bits per element.
GRADSIEVE_PER_TARGET(void store_bf16_chunk(float const* values, std::uint16_t const* random,
                                           std::uint64_t count, std::uint16_t* out))
/// random ← the 16-bit numbers of `num_blocks` blocks of eight from `first_block` on; writes up to
/// kRandomSlack numbers more.
GRADSIEVE_PER_TARGET(void random_rows(std::uint32_t key_low, std::uint32_t key_high,
                                      std::uint64_t step, std::uint64_t first_block,
                                      std::uint64_t num_blocks, std::uint16_t* random))
inline constexpr std::uint64_t kRandomSlack = 512;

}  // namespace gradsieve::kernels::cpu
