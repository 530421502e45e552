// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/per_target.hpp"
#include "kernels/cpu/random_bits.hpp"

namespace gradsieve::kernels::cpu {

/// A run of blocks, of which only the last may be short. It starts at an even element, so that with
/// 4 bits no byte belongs to two runs.
struct QuantizerRun {
  std::uint64_t num_elements;
  std::uint64_t block_elements;
  int bits;
  bool is_stochastic;
  RandomBitsKey key;
  std::uint64_t first_element;  ///< of this run, in its tensor: addresses the random numbers
  unsigned char* codes;
  float* scales;
  float* residual;  ///< null if it is not wanted
};

GRADSIEVE_PER_TARGET(void quantize_run(QuantizerRun const& run, float const* corrected))

/// c goes to run.residual first and is replaced there by c − ĉ. `residual_in` is null for e = 0.
/// True if an element was not finite.
GRADSIEVE_PER_TARGET(bool quantize_fused_run(QuantizerRun const& run, void const* gradient,
                                             ElementType type, float const* residual_in,
                                             float carry))

/// Elements [begin, end) of the whole array; begin is even.
GRADSIEVE_PER_TARGET(void dequantize_add_run(
    unsigned char const* codes, unsigned char const* scales, int bits, std::uint64_t block_elements,
    float weight, float* accumulator, std::uint64_t begin, std::uint64_t end))

}  // namespace gradsieve::kernels::cpu
