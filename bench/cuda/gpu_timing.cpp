// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/gpu_timing.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace gradsieve::bench {

using Clock = std::chrono::steady_clock;

Deadline::Deadline(double seconds)
    : is_set_(seconds > 0),
      at_(Clock::now() +
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

bool Deadline::is_over() const { return is_set_ && Clock::now() >= at_; }

double Deadline::seconds_left() const {
  if (!is_set_) return std::numeric_limits<double>::infinity();
  return std::max(0.0, std::chrono::duration<double>(at_ - Clock::now()).count());
}

GpuTiming::GpuTiming(GpuMemory& memory, std::size_t num_cases, std::size_t flush_bytes)
    : memory_(memory),
      flush_(flush_bytes, device_memory(), {memory.stream()}),
      sink_(sizeof(std::uint32_t), device_memory(), {memory.stream()}),
      microseconds_(num_cases) {
  require_cuda(cudaEventCreate(&start_), "making an event");
  require_cuda(cudaEventCreate(&end_), "making an event");
}

GpuTiming::~GpuTiming() {
  static_cast<void>(cudaEventDestroy(start_));
  static_cast<void>(cudaEventDestroy(end_));
}

// All of it is enqueued before the device has come to the first event: putting data back and
// reading the flush buffer take longer than the launches, so no launch is waited for.
double GpuTiming::time_calls(std::size_t i, int num_calls) {
  memory_.restore(i);
  read_through(memory_.stream(), flush_.bytes(), sink_.as<std::uint32_t>().data());
  require_cuda(cudaEventRecord(start_, memory_.stream()), "recording an event");
  for (int call = 0; call < num_calls; ++call) memory_.run(i);
  require_cuda(cudaEventRecord(end_, memory_.stream()), "recording an event");
  memory_.require_no_error(i);
  float milliseconds = 0;
  require_cuda(cudaEventElapsedTime(&milliseconds, start_, end_), "reading an event");
  return 1e3 * static_cast<double>(milliseconds);
}

void GpuTiming::run(int rounds, Deadline const& deadline, Report const& report) {
  std::vector<std::size_t> order(microseconds_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  int const first_round = rounds == 1 ? 1 : 0;
  for (int round = first_round; round <= rounds; ++round) {
    // The first round that counts is in the order of the list, copies first: they are what a run
    // that is stopped early needs most.
    if (round != 1) std::ranges::shuffle(order, random_);
    for (std::size_t const i : order) {
      if (deadline.is_over()) return;
      double const time = time_calls(i, 1);
      report(i, round, time);
      if (round != 0) microseconds_[i].push_back(time);
    }
  }
}

std::vector<double> GpuTiming::back_to_back(int num_calls, Deadline const& deadline) {
  std::vector<double> times(microseconds_.size(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t i = 0; i < times.size() && !deadline.is_over(); ++i) {
    times[i] = time_calls(i, num_calls) / num_calls;
  }
  return times;
}

}  // namespace gradsieve::bench
