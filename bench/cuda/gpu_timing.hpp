// SPDX-License-Identifier: Apache-2.0
// Times calls with the device's own clock: restored data, a cold cache, an order drawn anew each
// round, so that a slow moment meets all of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <random>
#include <vector>

#include "bench/cuda/gpu_memory.hpp"

namespace gradsieve::bench {

/// When to stop, whatever is left to do.
class Deadline {
 public:
  /// 0 seconds: never.
  explicit Deadline(double seconds);
  [[nodiscard]] bool is_over() const;
  [[nodiscard]] double seconds_left() const;

 private:
  bool is_set_;
  std::chrono::steady_clock::time_point at_;
};

class GpuTiming {
 public:
  using Report = std::function<void(std::size_t i, int round, double microseconds)>;

  /// Between two calls `flush_bytes` are read, which should be several times the L2.
  GpuTiming(GpuMemory& memory, std::size_t num_cases, std::size_t flush_bytes);
  ~GpuTiming();
  GpuTiming(GpuTiming const&) = delete;
  GpuTiming& operator=(GpuTiming const&) = delete;

  /// All calls `rounds` times. Where that is more than once, a round 0 before them is reported but
  /// does not count: it loads the kernels and wakes the clocks. Stops early at the deadline.
  void run(int rounds, Deadline const& deadline, Report const& report);
  [[nodiscard]] std::vector<double> const& microseconds(std::size_t i) const {
    return microseconds_[i];
  }
  /// Each call `num_calls` times between two events, without anything in between: the time of one,
  /// launches hidden behind the call before. NaN where the deadline came first.
  [[nodiscard]] std::vector<double> back_to_back(int num_calls, Deadline const& deadline);

 private:
  [[nodiscard]] double time_calls(std::size_t i, int num_calls);

  GpuMemory& memory_;
  Buffer flush_;
  Buffer sink_;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::vector<std::vector<double>> microseconds_;
  std::mt19937 random_{20};
};

}  // namespace gradsieve::bench
