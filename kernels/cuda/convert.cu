// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/add_scaled.cuh"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

struct ConvertPolicy {
  static constexpr unsigned threads = 256, items_per_thread = 4, min_blocks = 4;
};

template <typename T>
struct Widen : SeesNothing {
  T const* values;
  float* out;

  template <int kWidth>
  __device__ Pack<T, kWidth> load(std::uint64_t i) const {
    return cuda::load<kWidth>(values + i);
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t i, Pack<T, kWidth> const& x, bool&) const {
    Pack<float, kWidth> wide;
    for (int lane = 0; lane < kWidth; ++lane) wide.at[lane] = widened(x.at[lane]);
    store<kWidth>(out + i, wide);
  }
};

template <typename T>
struct Narrow : SeesNothing {
  float const* values;
  T* out;
  bool saturate;

  template <int kWidth>
  __device__ Pack<float, kWidth> load(std::uint64_t i) const {
    return cuda::load<kWidth>(values + i);
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t i, Pack<float, kWidth> const& x, bool&) const {
    Pack<T, kWidth> half;
    for (int lane = 0; lane < kWidth; ++lane) half.at[lane] = narrowed<T>(x.at[lane], saturate);
    store<kWidth>(out + i, half);
  }
};

}  // namespace

void widen(ExecContext const& ctx, ConstTensorView values, std::span<float> out) noexcept {
  with_elements(values, [&]<typename T>(T const* elements) {
    stream<ConvertPolicy>(ctx, Widen<T>{{}, elements, out.data()}, out.size(),
                          common_head(elements, out.data()));
  });
}

void narrow(ExecContext const& ctx, std::span<float const> values, bool saturate,
            TensorView out) noexcept {
  with_elements(out, [&]<typename T>(T* elements) {
    stream<ConvertPolicy>(ctx, Narrow<T>{{}, values.data(), elements, saturate}, values.size(),
                          common_head(values.data(), elements));
  });
}

void add_scaled(ExecContext const& ctx, ConstTensorView values, StepValue<float> weight,
                std::span<float> accumulator) noexcept {
  with_elements(values, [&]<typename T>(T const* elements) {
    stream<ConvertPolicy>(ctx, AddScaled<T>{{ctx.only_if}, elements, accumulator.data(), weight},
                          accumulator.size(), common_head(elements, accumulator.data()));
  });
}

}  // namespace gradsieve::kernels::cuda
