// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/compensated.cuh"
#include "kernels/cuda/random.cuh"
#include "kernels/cuda/stream.cuh"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

struct FeedbackPolicy {
  static constexpr unsigned threads = 256, items_per_thread = 4, min_blocks = 4;
};
struct StorePolicy {
  static constexpr unsigned threads = 256, items_per_thread = 2, min_blocks = 4;
};

struct Retain : SeesNothing {
  float const* decoded;
  float* residual;

  template <int kWidth>
  struct Loaded {
    Pack<float, kWidth> decoded;
    Pack<float, kWidth> residual;
  };
  template <int kWidth>
  __device__ Loaded<kWidth> load(std::uint64_t i) const {
    return {cuda::load<kWidth>(decoded + i), cuda::load<kWidth>(residual + i)};
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t i, Loaded<kWidth> const& x, bool&) const {
    Pack<float, kWidth> rest;
    for (int lane = 0; lane < kWidth; ++lane) {
      rest.at[lane] = canonical(x.residual.at[lane] - x.decoded.at[lane]);
    }
    store<kWidth>(residual + i, rest);
  }
};

struct StoreBf16 : OnlyIf {
  float const* values;
  BFloat16* out;
  RoundingKey key;

  __device__ void begin() { key.step = key.step.get(); }
  template <int kWidth>
  __device__ Pack<float, kWidth> load(std::uint64_t i) const {
    return cuda::load<kWidth>(values + i);
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t i, Pack<float, kWidth> const& x, bool&) const {
    RandomQuad const random = rounding_quad<kWidth>(key, i);
    Pack<BFloat16, kWidth> rounded;
    for (int lane = 0; lane < kWidth; ++lane) {
      rounded.at[lane] = stochastic_bf16(x.at[lane], random, lane);
    }
    store<kWidth>(out + i, rounded);
  }
};

}  // namespace

Flags compensate(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual) noexcept {
  float const* const in = residual.in.empty() ? nullptr : residual.in.data();
  float* const out = residual.out.data();
  with_elements(gradient, [&]<typename T>(T const* elements) {
    Compensate<T> const operation = {elements, in, out, residual.carry, ctx.words};
    stream<FeedbackPolicy>(ctx, operation, gradient.num_elements, common_head(elements, in, out));
  });
  return 0;
}

void retain(ExecContext const& ctx, std::span<float const> decoded,
            std::span<float> residual) noexcept {
  stream<FeedbackPolicy>(ctx, Retain{{}, decoded.data(), residual.data()}, residual.size(),
                         common_head(decoded.data(), residual.data()));
}

void store_bf16(ExecContext const& ctx, std::span<float const> values, RoundingKey const& key,
                std::span<BFloat16> out) noexcept {
  stream<StorePolicy>(ctx, StoreBf16{{ctx.only_if}, values.data(), out.data(), key}, values.size(),
                      common_head(values.data(), out.data()));
}

}  // namespace gradsieve::kernels::cuda
