// SPDX-License-Identifier: Apache-2.0
// What device arrays hold before a call, drawn on the device: at 2^27 elements one host thread
// would take longer than all that is timed. And the small kernels that measuring needs.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

#include <cuda_runtime_api.h>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve::bench {

/// The distributions of bench/micro/bench_data.hpp that a kernel's time could depend on.
enum class GpuData : std::uint8_t { normal, heavy, ties, zeros };
[[nodiscard]] char const* gpu_data_name(GpuData data) noexcept;

enum class Content : std::uint8_t {
  nothing,
  values,      ///< the run's distribution in `dtype`
  magnitudes,  ///< |c| of the sums of two such, f32: what a top-k without feedback starts from
  positions,   ///< u32: 0, 1, 2, …
  codes,       ///< random bytes
  scales,      ///< f32, between 0.5 and 1
};

struct Fill {
  Content content = Content::nothing;
  DType dtype = DType::f32;
  std::uint64_t seed = 1;

  friend auto operator<=>(Fill const&, Fill const&) = default;
};

void fill_array(cudaStream_t stream, Fill const& fill, GpuData data, std::span<std::byte> array);

/// Reads all of `memory`, so that the L2 holds nothing else and none of it has to be written back.
void read_through(cudaStream_t stream, std::span<std::byte const> memory, std::uint32_t* sink);

/// *count ← *count + how many 32-bit words differ; both arrays begin at a word.
void count_differences(cudaStream_t stream, std::span<std::byte const> a,
                       std::span<std::byte const> b, unsigned long long* count);

}  // namespace gradsieve::bench
