// SPDX-License-Identifier: Apache-2.0
// c = g + carry·e of one element, as the ref kernel `compensate` defines it.
#pragma once

#include "kernels/cuda/stream.cuh"

namespace gradsieve::kernels::cuda {

__device__ inline float compensated(float gradient, float carry, float residual, bool& non_finite) {
  float const carried = carry * residual;
  float const sum = gradient + carried;
  if (is_finite(sum)) return sum;
  non_finite = true;
  return carried;
}

/// The same as one pass over arrays.
template <typename T>
struct Compensate {
  T const* gradient;
  float const* residual_in;  ///< null: zeros
  float* residual_out;
  StepValue<float> carry;
  StepWords* words;

  template <int kWidth>
  struct Loaded {
    Pack<T, kWidth> gradient;
    Pack<float, kWidth> residual;
  };
  __device__ void begin() { carry = carry.get(); }
  template <int kWidth>
  __device__ Loaded<kWidth> load(std::uint64_t i) const {
    Loaded<kWidth> result = {cuda::load<kWidth>(gradient + i), {}};
    if (residual_in != nullptr) result.residual = cuda::load<kWidth>(residual_in + i);
    return result;
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t i, Loaded<kWidth> const& x, bool& non_finite) const {
    Pack<float, kWidth> c;
    for (int lane = 0; lane < kWidth; ++lane) {
      c.at[lane] =
          compensated(widened(x.gradient.at[lane]), carry.value, x.residual.at[lane], non_finite);
    }
    store<kWidth>(residual_out + i, c);
  }
  __device__ void end(bool non_finite) const { raise(words, kStepNonFinite, non_finite); }
};

}  // namespace gradsieve::kernels::cuda
