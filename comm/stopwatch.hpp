// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "gradsieve/transport.hpp"

namespace gradsieve {

/// Adds up the time that a scope takes.
class Stopwatch {
 public:
  explicit Stopwatch(double& total_seconds) noexcept : total_seconds_(total_seconds) {}
  ~Stopwatch() { total_seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(Stopwatch const&) = delete;
  Stopwatch& operator=(Stopwatch const&) = delete;

 private:
  double& total_seconds_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace gradsieve
