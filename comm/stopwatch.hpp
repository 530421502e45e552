// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <ctime>

#include "gradsieve/transport.hpp"

namespace gradsieve {

/// What a piece of work took.
struct Spent {
  double seconds = 0.0;  ///< on the clock on the wall: what others ran meanwhile is in it
  /// CPU time of the thread that did it. Helpers of a pool are not in it, and with one thread there
  /// are none.
  double cpu_seconds = 0.0;

  Spent& operator+=(Spent const& other) noexcept {
    seconds += other.seconds;
    cpu_seconds += other.cpu_seconds;
    return *this;
  }
};

/// Adds up what a scope takes of both clocks.
class Stopwatch {
 public:
  explicit Stopwatch(Spent& total) noexcept : total_(total) {}
  ~Stopwatch() {
    total_.cpu_seconds += thread_cpu_seconds() - cpu_start_;
    total_.seconds += std::chrono::duration<double>(Clock::now() - start_).count();
  }
  Stopwatch(Stopwatch const&) = delete;
  Stopwatch& operator=(Stopwatch const&) = delete;

 private:
  static double thread_cpu_seconds() noexcept {
    std::timespec now = {};
    if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) return 0.0;
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

  Spent& total_;
  Clock::time_point start_ = Clock::now();
  double cpu_start_ = thread_cpu_seconds();
};

}  // namespace gradsieve
