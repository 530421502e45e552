// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/per_target.hpp"

namespace gradsieve::kernels::cpu {

/// A run of blocks, of which only the last may be short. It starts at a multiple of eight elements,
/// so that no byte of a plane belongs to two runs.
struct SignRun {
  std::uint64_t num_elements;
  std::uint64_t block_elements;
  unsigned char* signs;
  unsigned char* zeros;
  float* scales;
  float* residual;  ///< null if it is not wanted
};

/// True if an element is zero.
GRADSIEVE_PER_TARGET(bool sign_run(SignRun const& run, float const* corrected))

/// What a run has come across.
struct SignFindings {
  bool any_zero;
  bool any_nonfinite;
};

/// c goes to run.residual first and is replaced there by c − ĉ. `residual_in` is null for e = 0.
GRADSIEVE_PER_TARGET(SignFindings sign_fused_run(SignRun const& run, void const* gradient,
                                                 ElementType type, float const* residual_in,
                                                 float carry))

/// Elements [begin, end) of the whole array; begin is a multiple of eight.
GRADSIEVE_PER_TARGET(void sign_add_run(unsigned char const* signs, unsigned char const* zeros,
                                       unsigned char const* scales, std::uint64_t block_elements,
                                       float weight, float* accumulator, std::uint64_t begin,
                                       std::uint64_t end))

}  // namespace gradsieve::kernels::cpu
