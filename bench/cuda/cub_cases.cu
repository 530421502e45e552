// SPDX-License-Identifier: Apache-2.0
// What CUB offers for top-k, as a baseline: a radix sort of (magnitude, index) pairs, and
// DeviceTopK where this CUB has it. Both start from magnitudes: feedback is not in their time.
#include <cstdint>

#include <cub/device/device_radix_sort.cuh>

#if __has_include(<cub/device/device_topk.cuh>)
#include <cub/device/device_topk.cuh>
#define GRADSIEVE_HAVE_CUB_TOPK 1
#endif

#include "bench/cuda/gpu_case.hpp"

namespace gradsieve::bench {
namespace {

cudaStream_t stream_of(ExecContext const& ctx) {
  return static_cast<cudaStream_t>(ctx.stream.handle);
}

cudaError_t sort_pairs(void* work, std::size_t& work_bytes, float const* keys, float* sorted_keys,
                       std::uint32_t const* indices, std::uint32_t* sorted_indices,
                       std::uint64_t count, cudaStream_t stream) {
  constexpr int kBits = 31;  // of a magnitude; its sign is not looked at
  return cub::DeviceRadixSort::SortPairsDescending(
      work, work_bytes, keys, sorted_keys, indices, sorted_indices,
      static_cast<std::uint32_t>(count), 0, kBits, stream);
}

void add_sort(CaseList& list) {
  std::uint64_t const n = list.num_elements;
  std::size_t work_bytes = 0;
  static_cast<void>(
      sort_pairs(nullptr, work_bytes, nullptr, nullptr, nullptr, nullptr, n, nullptr));
  GpuCase c = {.kernel = "cub_sort_pairs",
               .variant = "top-k by sorting",
               .traffic = {"8 pairs + 8 pairs", 16},
               .depends_on_data = true,
               .has_ref = false};
  std::size_t const keys = c.input({Content::magnitudes}, 4 * n);
  std::size_t const indices = c.input({Content::positions}, 4 * n);
  std::size_t const sorted_keys = c.output(4 * n);
  std::size_t const sorted_indices = c.output(4 * n);
  std::size_t const work = c.output(work_bytes);
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    std::size_t num_bytes = work_bytes;
    static_cast<void>(sort_pairs(a.data(work), num_bytes, a.as<float>(keys).data(),
                                 a.as<float>(sorted_keys).data(),
                                 a.as<std::uint32_t>(indices).data(),
                                 a.as<std::uint32_t>(sorted_indices).data(), n, stream_of(ctx)));
  };
  list.add(std::move(c));
}

#ifdef GRADSIEVE_HAVE_CUB_TOPK

template <typename Environment>
cudaError_t top_pairs(void* work, std::size_t& work_bytes, float const* keys, float* top_keys,
                      std::uint32_t const* indices, std::uint32_t* top_indices, std::uint64_t count,
                      std::uint64_t k, Environment const& environment) {
  return cub::DeviceTopK::MaxPairs(work, work_bytes, keys, top_keys, indices, top_indices, count, k,
                                   environment);
}

/// Unsorted and of undefined ties: that is all that it offers.
auto environment_on(cudaStream_t stream) {
  auto const requirements = cuda::execution::require(cuda::execution::determinism::not_guaranteed,
                                                     cuda::execution::output_ordering::unsorted);
  return cuda::std::execution::env{cuda::stream_ref{stream}, requirements};
}

void add_device_topk(CaseList& list) {
  std::uint64_t const n = list.num_elements;
  std::uint64_t const k = n / 100;
  std::size_t work_bytes = 0;
  static_cast<void>(top_pairs(nullptr, work_bytes, nullptr, nullptr, nullptr, nullptr, n, k,
                              environment_on(nullptr)));
  GpuCase c = {.kernel = "cub_device_topk",
               .variant = "1 %, no order, any tie",
               .traffic = {"8 pairs + 8 k/n", 8.08},
               .depends_on_data = true,
               .has_ref = false};
  std::size_t const keys = c.input({Content::magnitudes}, 4 * n);
  std::size_t const indices = c.input({Content::positions}, 4 * n);
  std::size_t const top_keys = c.output(4 * k);
  std::size_t const top_indices = c.output(4 * k);
  std::size_t const work = c.output(work_bytes);
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    std::size_t num_bytes = work_bytes;
    static_cast<void>(top_pairs(a.data(work), num_bytes, a.as<float>(keys).data(),
                                a.as<float>(top_keys).data(), a.as<std::uint32_t>(indices).data(),
                                a.as<std::uint32_t>(top_indices).data(), n, k,
                                environment_on(stream_of(ctx))));
  };
  list.add(std::move(c));
}

#else

void add_device_topk(CaseList&) {}

#endif

}  // namespace

void add_cub_cases(CaseList& list) {
  add_sort(list);
  add_device_topk(list);
}

}  // namespace gradsieve::bench
