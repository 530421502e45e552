// SPDX-License-Identifier: Apache-2.0
// accumulator + weight·x, as the ref kernel `add_scaled` defines it, as one pass over arrays.
#pragma once

#include "kernels/cuda/stream.cuh"

namespace gradsieve::kernels::cuda {

template <typename T>
struct AddScaled : OnlyIf {
  T const* values;
  float* accumulator;
  StepValue<float> weight;

  __device__ void begin() { weight = weight.get(); }
  template <int kWidth>
  struct Loaded {
    Pack<T, kWidth> values;
    Pack<float, kWidth> sum;
  };
  /// All but the sum.
  template <int kWidth>
  __device__ Loaded<kWidth> load_sent(std::uint64_t i) const {
    return {cuda::load<kWidth>(values + i), {}};
  }
  template <int kWidth>
  __device__ Loaded<kWidth> load(std::uint64_t i) const {
    return {cuda::load<kWidth>(values + i), cuda::load<kWidth>(accumulator + i)};
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t i, Loaded<kWidth> const& x, bool&) const {
    Pack<float, kWidth> sum;
    for (int lane = 0; lane < kWidth; ++lane) {
      float const product = weight.value * widened(x.values.at[lane]);
      sum.at[lane] = canonical(x.sum.at[lane] + product);
    }
    store<kWidth>(accumulator + i, sum);
  }
};

}  // namespace gradsieve::kernels::cuda
