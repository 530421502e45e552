// SPDX-License-Identifier: Apache-2.0
// c = g + carry·e of one element, as the ref kernel `compensate` defines it. For .simd.cpp files
// only: everything is local to the file that includes it.
#pragma once

#include "kernels/cpu/element_lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

/// `non_finite` becomes all ones where the sum is not finite.
[[gnu::always_inline]] inline float compensated(float gradient, float carry, float residual,
                                                std::uint32_t& non_finite) {
  float const carried = carry * residual;
  float const sum = gradient + carried;
  bool const is_finite = (bits_of(sum) & ~kSignBit) < kInfinityBits;
  non_finite |= is_finite ? 0U : ~0U;
  return is_finite ? sum : carried;
}

/// The residual of nobody: e = 0.
struct NoResidual {
  [[gnu::always_inline]] float operator[](std::uint64_t) const { return 0.0F; }
};

}  // namespace
}  // namespace gradsieve::kernels::cpu
