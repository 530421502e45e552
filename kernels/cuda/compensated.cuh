// SPDX-License-Identifier: Apache-2.0
// c = g + carry·e of one element, as the ref kernel `compensate` defines it.
#pragma once

#include "kernels/cuda/element.cuh"

namespace gradsieve::kernels::cuda {

__device__ inline float compensated(float gradient, float carry, float residual, bool& non_finite) {
  float const carried = carry * residual;
  float const sum = gradient + carried;
  if (is_finite(sum)) return sum;
  non_finite = true;
  return carried;
}

}  // namespace gradsieve::kernels::cuda
