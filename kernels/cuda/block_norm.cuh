// SPDX-License-Identifier: Apache-2.0
// Norms of blocks, in the order of ref: eight lanes left to right, then lanes in pairs.
#pragma once

#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {

inline constexpr unsigned kNormLanes = 8;

__device__ inline double combined(double a, double b, BlockNorm norm) {
  return norm == BlockNorm::l2 ? a + b : fmax(a, b);
}
__device__ inline double term_of(float c, BlockNorm norm) {
  auto const x = static_cast<double>(c);
  return norm == BlockNorm::l2 ? x * x : fabs(x);
}

/// (0+1)+(2+3), (4+5)+(6+7): addition commutes, so both partners get the same sum. All threads of a
/// warp call it.
__device__ inline double sum_of_lanes(double sum, BlockNorm norm) {
  for (int distance = 1; distance < static_cast<int>(kNormLanes); distance *= 2) {
    sum = combined(sum, __shfl_xor_sync(0xffffffffU, sum, distance), norm);
  }
  return sum;
}

}  // namespace gradsieve::kernels::cuda
