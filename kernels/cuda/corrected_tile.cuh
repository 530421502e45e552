// SPDX-License-Identifier: Apache-2.0
// A tile of c = g + carry·e in the registers of a thread block: what every pass over a gradient
// begins with.
#pragma once

#include "gradsieve/selection.hpp"

#include "kernels/cuda/compensated.cuh"
#include "kernels/cuda/tile.cuh"

namespace gradsieve::kernels::cuda {

template <typename T>
struct CorrectedTile {
  static constexpr unsigned kItems = TilePolicy::items_per_thread;

  T const* gradient;
  float const* residual_in;  ///< null: zeros
  float* residual_out;
  StepValue<float> carry;

  __device__ void begin() { carry = carry.get(); }

  /// All loads are issued before the first sum.
  template <bool kAligned>
  __device__ void read(std::uint64_t begin, unsigned size, Pack<float, 4> (&c)[kItems],
                       bool& non_finite) const {
    Pack<T, 4> g[kItems];
    Pack<float, 4> e[kItems] = {};
#pragma unroll
    for (unsigned item = 0; item < kItems; ++item) {
      QuadPlace const at(item, size);
      g[item] = load_quad<kAligned>(gradient + begin + at.first, at.count);
      if (residual_in != nullptr) {
        e[item] = load_quad<kAligned>(residual_in + begin + at.first, at.count);
      }
    }
#pragma unroll
    for (unsigned item = 0; item < kItems; ++item) {
#pragma unroll
      for (unsigned lane = 0; lane < 4; ++lane) {
        c[item].at[lane] =
            compensated(widened(g[item].at[lane]), carry.value, e[item].at[lane], non_finite);
      }
    }
  }

  /// c of one element.
  __device__ float at(std::uint64_t i) const {
    bool unused = false;
    float const e = residual_in == nullptr ? 0.0F : residual_in[i];
    return compensated(widened(gradient[i]), carry.value, e, unused);
  }

  [[nodiscard]] bool is_aligned() const noexcept {
    return is_quad_aligned(gradient) && is_quad_aligned(residual_in) &&
           is_quad_aligned(residual_out);
  }
};

/// body(CorrectedTile<T>) for the gradient's type.
template <typename Body>
void with_corrected(ConstTensorView gradient, ResidualView residual, Body const& body) {
  float const* const in = residual.in.empty() ? nullptr : residual.in.data();
  with_elements(gradient, [&]<typename T>(T const* elements) {
    body(CorrectedTile<T>{elements, in, residual.out.data(), residual.carry});
  });
}

__device__ inline std::uint32_t magnitude_of(float x) { return __float_as_uint(x) & 0x7fffffffU; }

}  // namespace gradsieve::kernels::cuda
