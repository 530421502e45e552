// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/stream.cuh"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

struct ScalePolicy {
  static constexpr unsigned threads = 256, items_per_thread = 4, min_blocks = 4;
};
// A thread is one lane of one block of the sum; a warp reads four times eight elements at once.
struct SumPolicy {
  static constexpr unsigned threads = 128, items_per_thread = 16, min_blocks = 8;
};
struct TotalPolicy {
  static constexpr unsigned threads = 256, items_per_thread = 4, min_blocks = 1;
};
constexpr std::uint64_t kSumBlock = 4096;
constexpr std::uint64_t kLanes = 8;

struct Scale : SeesNothing {
  float* values;
  StepValue<float> factor;

  __device__ void begin() { factor = factor.get(); }
  template <int kWidth>
  __device__ Pack<float, kWidth> load(std::uint64_t i) const {
    return cuda::load<kWidth>(values + i);
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t i, Pack<float, kWidth> const& x, bool&) const {
    Pack<float, kWidth> product;
    for (int lane = 0; lane < kWidth; ++lane) {
      product.at[lane] = canonical(factor.value * x.at[lane]);
    }
    store<kWidth>(values + i, product);
  }
};

/// Σ x² of every eighth element from `first` on, left to right.
template <unsigned kUnroll>
__device__ double sum_lane(float const* values, std::uint64_t first, std::uint64_t end) {
  double sum = 0;
  std::uint64_t i = first;
  for (; i + (kUnroll - 1) * kLanes < end; i += kUnroll * kLanes) {
    float x[kUnroll];
#pragma unroll
    for (unsigned j = 0; j < kUnroll; ++j) x[j] = values[i + j * kLanes];
#pragma unroll
    for (unsigned j = 0; j < kUnroll; ++j)
      sum += static_cast<double>(x[j]) * static_cast<double>(x[j]);
  }
  for (; i < end; i += kLanes)
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

__global__ void __launch_bounds__(SumPolicy::threads, SumPolicy::min_blocks)
    sum_blocks_kernel(float const* values, std::uint64_t num_elements, double* block_sums) {
  std::uint64_t const num_blocks = divide_up(num_elements, kSumBlock);
  std::uint64_t const per_grid = std::uint64_t{gridDim.x} * SumPolicy::threads / kLanes;
  std::uint64_t const lane = threadIdx.x % kLanes;
  std::uint64_t const first =
      (std::uint64_t{blockIdx.x} * SumPolicy::threads + threadIdx.x) / kLanes;
  // All threads of a warp take as many turns, for the shuffles.
  for (std::uint64_t turn = 0; turn * per_grid < num_blocks; ++turn) {
    std::uint64_t const block = turn * per_grid + first;
    std::uint64_t const begin = block * kSumBlock;
    std::uint64_t const end = min(begin + kSumBlock, num_elements);
    double sum = sum_lane<SumPolicy::items_per_thread>(values, begin + lane, end);
    // (0+1)+(2+3), (4+5)+(6+7): addition commutes, so both partners get the same sum.
    for (int distance = 1; distance < static_cast<int>(kLanes); distance *= 2) {
      sum += __shfl_xor_sync(0xffffffffU, sum, distance);
    }
    if (lane == 0 && block < num_blocks) block_sums[block] = sum;
  }
}

__global__ void __launch_bounds__(TotalPolicy::threads, TotalPolicy::min_blocks)
    add_in_order_kernel(double const* block_sums, std::uint64_t num_blocks, double* total) {
  constexpr unsigned kStretch = TotalPolicy::threads * TotalPolicy::items_per_thread;
  __shared__ double stretch[kStretch];
  double sum = 0;
  for (std::uint64_t begin = 0; begin < num_blocks; begin += kStretch) {
    auto const count = static_cast<unsigned>(min(std::uint64_t{kStretch}, num_blocks - begin));
    for (unsigned i = threadIdx.x; i < count; i += TotalPolicy::threads) {
      stretch[i] = block_sums[begin + i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll 8
      for (unsigned i = 0; i < count; ++i) sum += stretch[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *total = sum;
}

}  // namespace

void scale(ExecContext const& ctx, StepValue<float> factor, std::span<float> values) noexcept {
  stream<ScalePolicy>(ctx, Scale{{}, values.data(), factor}, values.size(),
                      common_head(values.data()));
}

void sum_squares(ExecContext const& ctx, std::span<float const> values, double* sum) noexcept {
  std::uint64_t const num_blocks = divide_up(values.size(), kSumBlock);
  WorkspaceScope const scope(*ctx.workspace);
  std::span<double> const block_sums = ctx.workspace->take<double>(num_blocks);
  if (block_sums.size() != num_blocks) {
    keep_failure(ctx, kWorkspaceTooSmall);
    return;
  }
  if (num_blocks != 0) {
    launch(ctx, grid_of(divide_up(num_blocks * kLanes, SumPolicy::threads)), SumPolicy::threads, 0,
           sum_blocks_kernel, values.data(), values.size(), block_sums.data());
  }
  launch(ctx, 1, TotalPolicy::threads, 0, add_in_order_kernel, block_sums.data(), num_blocks, sum);
}

}  // namespace gradsieve::kernels::cuda
