// SPDX-License-Identifier: Apache-2.0
// The device memory of all calls of one run. Calls take turns, so what they only write is shared,
// and inputs of equal content exist once.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include <cuda_runtime_api.h>

#include "gradsieve/memory.hpp"

#include "bench/cuda/gpu_case.hpp"

namespace gradsieve::bench {

/// Throws Error(device_error) with the runtime's words.
void require_cuda(cudaError_t error, char const* doing);

class GpuMemory {
 public:
  /// Fills the inputs and calls prepare() of each case.
  GpuMemory(std::span<GpuCase const> cases, GpuData data);
  ~GpuMemory();
  GpuMemory(GpuMemory const&) = delete;
  GpuMemory& operator=(GpuMemory const&) = delete;

  [[nodiscard]] cudaStream_t stream() const noexcept { return stream_; }
  [[nodiscard]] Arrays const& arrays(std::size_t i) const { return bound_[i]; }
  /// Puts back what the call reads and writes; in stream order.
  void restore(std::size_t i);
  /// Sets every byte of what it only writes; in stream order.
  void poison(std::size_t i);
  void run(std::size_t i);

  void wait();
  /// Waits; throws what a launch or the device complains of.
  void require_no_error(std::size_t i);
  void reset_words();
  [[nodiscard]] StepWords read_words();
  [[nodiscard]] std::vector<std::byte> read(std::span<std::byte const> device_bytes);

  static constexpr int kPoison = 0xC5;

 private:
  using Key = std::tuple<Fill, std::uint64_t>;

  [[nodiscard]] ExecContext context() noexcept;
  [[nodiscard]] std::span<std::byte> pristine(ArrayPlan const& plan);
  void allocate_scratch();
  [[nodiscard]] std::vector<std::span<std::byte>> bind(GpuCase const& gpu_case);

  std::span<GpuCase const> cases_;
  GpuData data_;
  cudaStream_t stream_ = nullptr;
  std::map<Key, Buffer> pristine_;
  std::vector<Buffer> scratch_;  ///< the j-th in_out or output of any call
  std::vector<Buffer> own_;      ///< what calls prepare for themselves
  std::vector<Arrays> bound_;
  Buffer words_;
  Buffer work_;
  Workspace workspace_;
  Status error_;
};

}  // namespace gradsieve::bench
