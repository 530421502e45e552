// SPDX-License-Identifier: Apache-2.0
// Where a run of a block codec has its c from.
#pragma once

#include "kernels/cuda/compensated.cuh"
#include "kernels/cuda/tile.cuh"

namespace gradsieve::kernels::cuda {

inline constexpr unsigned kItems = TilePolicy::items_per_thread;
using Quad = Pack<float, 4>;

/// c = g + carry·e.
template <typename T>
struct FusedSource {
  T const* gradient;
  float const* residual_in;  ///< null: zeros
  StepValue<float> carry;

  struct Loaded {
    Pack<T, 4> gradient;
    Quad residual;
  };
  __device__ void begin() { carry = carry.get(); }
  template <bool kAligned>
  __device__ Loaded load(std::uint64_t i, unsigned count) const {
    Loaded result = {load_quad<kAligned>(gradient + i, count), {}};
    if (residual_in != nullptr) result.residual = load_quad<kAligned>(residual_in + i, count);
    return result;
  }
  __device__ Quad corrected(Loaded const& x, unsigned count, bool& non_finite) const {
    Quad c = {};
#pragma unroll
    for (unsigned lane = 0; lane < 4; ++lane) {
      if (lane >= count) continue;
      c.at[lane] =
          compensated(widened(x.gradient.at[lane]), carry.value, x.residual.at[lane], non_finite);
    }
    return c;
  }
};

/// c is there.
struct CorrectedSource {
  float const* values;

  using Loaded = Quad;
  __device__ void begin() {}
  template <bool kAligned>
  __device__ Loaded load(std::uint64_t i, unsigned count) const {
    return load_quad<kAligned>(values + i, count);
  }
  __device__ Quad corrected(Loaded const& x, unsigned, bool&) const { return x; }
};

/// Of a run of many: c is the gradient where the source is CorrectedSource.
template <typename Source, typename G>
__device__ Source source_of(G const* gradient, float const* residual_in, StepValue<float> carry) {
  if constexpr (std::is_same_v<Source, CorrectedSource>) {
    return {gradient};
  } else {
    return {gradient, residual_in, carry};
  }
}

}  // namespace gradsieve::kernels::cuda
