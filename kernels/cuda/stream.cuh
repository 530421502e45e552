// SPDX-License-Identifier: Apache-2.0
// One pass over arrays of equal length: every element read once and written once. Where all arrays
// reach a multiple of four elements' size after the same number of elements, four go in one access;
// the few before and behind, and arrays that do not, go one by one, still side by side in a warp.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"

namespace gradsieve::kernels::cuda {

inline constexpr int kQuad = 4;
inline constexpr std::uint64_t kAnyHead = ~std::uint64_t{0} - 1;  ///< of an array that is not there
inline constexpr std::uint64_t kNeverAligned = ~std::uint64_t{0};

/// How many elements stand before the first quad of an array.
template <typename T>
[[nodiscard]] std::uint64_t elements_to_quad(T const* array) noexcept {
  if (array == nullptr) return kAnyHead;
  auto const address = reinterpret_cast<std::uintptr_t>(array);
  if (address % sizeof(T) != 0) return kNeverAligned;
  return (kQuad - address / sizeof(T) % kQuad) % kQuad;
}

/// The same of several arrays, or kNeverAligned where they differ.
template <typename... T>
[[nodiscard]] std::uint64_t common_head(T const*... arrays) noexcept {
  std::uint64_t head = kAnyHead;
  for (std::uint64_t const own : {elements_to_quad(arrays)...}) {
    if (own == kAnyHead) continue;
    if (head != kAnyHead && own != head) return kNeverAligned;
    head = own;
  }
  return head;
}

/// Operation is a struct of pointers and numbers with
///   void begin();                       reads what is a StepValue
///   template <int kWidth> auto load(std::uint64_t i) const;
///   template <int kWidth> void finish(std::uint64_t i, LOADED const&, bool& seen) const;
///   void end(bool seen) const;          called by all threads
///   bool is_left_out() const;           may be missing; the same for all threads
///
/// A thread's items of one tile: groups of kWidth elements from `first_group` on, element `head`
/// being the first of group 0. All its loads are issued before the first store.
template <typename Policy, int kWidth, typename Operation>
__device__ void stream_tile(Operation const& operation, std::uint64_t head,
                            std::uint64_t first_group, std::uint64_t num_groups, bool& seen) {
  constexpr unsigned kItems = Policy::items_per_thread;
  using Loaded = decltype(operation.template load<kWidth>(0));
  std::uint64_t const first = first_group + threadIdx.x;
  Loaded loaded[kItems];
#pragma unroll
  for (unsigned item = 0; item < kItems; ++item) {
    std::uint64_t const group = first + item * Policy::threads;
    if (group < num_groups) loaded[item] = operation.template load<kWidth>(head + group * kWidth);
  }
#pragma unroll
  for (unsigned item = 0; item < kItems; ++item) {
    std::uint64_t const group = first + item * Policy::threads;
    if (group < num_groups) {
      operation.template finish<kWidth>(head + group * kWidth, loaded[item], seen);
    }
  }
}

template <typename Policy, int kWidth, typename Operation>
__global__ void __launch_bounds__(Policy::threads, Policy::min_blocks)
    stream_kernel(Operation operation, std::uint64_t head, std::uint64_t num_elements) {
  if constexpr (requires { operation.is_left_out(); }) {
    if (operation.is_left_out()) return;
  }
  operation.begin();
  std::uint64_t const num_groups = (num_elements - head) / kWidth;
  constexpr std::uint64_t kTileGroups = std::uint64_t{Policy::threads} * Policy::items_per_thread;
  bool seen = false;
  for (std::uint64_t tile = blockIdx.x; tile * kTileGroups < num_groups; tile += gridDim.x) {
    stream_tile<Policy, kWidth>(operation, head, tile * kTileGroups, num_groups, seen);
  }
  if constexpr (kWidth != 1) {
    // At most three elements before the first quad and three behind the last one.
    std::uint64_t const behind = head + num_groups * kWidth;
    std::uint64_t const i = threadIdx.x < head ? threadIdx.x : behind + (threadIdx.x - head);
    if (blockIdx.x == 0 && i < num_elements) {
      operation.template finish<1>(i, operation.template load<1>(i), seen);
    }
  }
  operation.end(seen);
}

/// Element by element: the operation needs load<1>() and finish<1>() only.
template <typename Policy, typename Operation>
void stream_singly(ExecContext const& ctx, Operation const& operation,
                   std::uint64_t num_elements) noexcept {
  if (num_elements == 0) return;
  std::uint64_t const tile = std::uint64_t{Policy::threads} * Policy::items_per_thread;
  launch(ctx, grid_of(divide_up(num_elements, tile)), Policy::threads, 0,
         stream_kernel<Policy, 1, Operation>, operation, std::uint64_t{0}, num_elements);
}

/// `head` as common_head() of all arrays that the operation reads and writes.
template <typename Policy, typename Operation>
void stream(ExecContext const& ctx, Operation const& operation, std::uint64_t num_elements,
            std::uint64_t head) noexcept {
  if (num_elements == 0) return;
  std::uint64_t const tile = std::uint64_t{Policy::threads} * Policy::items_per_thread;
  if (head == kNeverAligned) {
    stream_singly<Policy>(ctx, operation, num_elements);
    return;
  }
  head = head < num_elements ? head : num_elements;
  launch(ctx, grid_of(divide_up(num_elements, tile * kQuad)), Policy::threads, 0,
         stream_kernel<Policy, kQuad, Operation>, operation, head, num_elements);
}

/// For operations that report nothing, or whose numbers never change.
struct SeesNothing {
  __device__ void begin() {}
  __device__ void end(bool) const {}
};

/// The same, for what ExecContext::only_if may leave out.
struct OnlyIf {
  std::uint32_t const* only_if;

  __device__ void begin() {}
  __device__ void end(bool) const {}
  [[nodiscard]] __device__ bool is_left_out() const { return only_if != nullptr && *only_if == 0; }
};

}  // namespace gradsieve::kernels::cuda
