// SPDX-License-Identifier: Apache-2.0
#include "core/philox.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tile.cuh"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

struct DrawPolicy {
  static constexpr unsigned threads = 256, items_per_thread = 4, min_blocks = 4;
};

/// A thread draws for four strata, which share one Philox block, and stores them at once: one by
/// one, each store of a warp would touch all the sectors of the four.
template <bool kAligned>
__global__ void __launch_bounds__(DrawPolicy::threads, DrawPolicy::min_blocks)
    draw_kernel(PhiloxKey key, StepValue<std::uint64_t> step_value, std::uint64_t num_elements,
                std::uint32_t* indices, std::uint64_t k) {
  constexpr unsigned kItems = DrawPolicy::items_per_thread;
  std::uint64_t const step = step_value.get();
  std::uint64_t const stride = std::uint64_t{gridDim.x} * DrawPolicy::threads;
  std::uint64_t group = std::uint64_t{blockIdx.x} * DrawPolicy::threads + threadIdx.x;
  for (; group * kItems < k; group += stride) {
    auto const words = philox(key, group, step);
    std::uint64_t const first = group * kItems;
    std::uint64_t end = first * num_elements / k;
    Pack<std::uint32_t, kItems> drawn;
#pragma unroll
    for (unsigned j = 0; j < kItems; ++j) {
      std::uint64_t const start = end;
      end = (first + j + 1) * num_elements / k;
      drawn.at[j] =
          static_cast<std::uint32_t>(start + (std::uint64_t{words[j]} * (end - start) >> 32));
    }
    store_quad<kAligned>(indices + first, drawn,
                         static_cast<unsigned>(min(k - first, std::uint64_t{kItems})));
  }
}

}  // namespace

void randomk(ExecContext const& ctx, PhiloxKey const& key, StepValue<std::uint64_t> step,
             std::uint64_t num_elements, std::span<std::uint32_t> indices) noexcept {
  if (indices.empty()) return;
  auto* const kernel = is_quad_aligned(indices.data()) ? draw_kernel<true> : draw_kernel<false>;
  launch(ctx,
         grid_of(divide_up(indices.size(), DrawPolicy::threads * DrawPolicy::items_per_thread)),
         DrawPolicy::threads, 0, kernel, key, step, num_elements, indices.data(),
         std::uint64_t{indices.size()});
}

}  // namespace gradsieve::kernels::cuda
