// SPDX-License-Identifier: Apache-2.0
#include "bench/convergence/terminal_progress.hpp"

#include <cstdio>
#include <utility>

#include <unistd.h>

namespace gradsieve::study {

Progress::Progress(bool speaks) : speaks_(speaks), is_terminal_(isatty(STDERR_FILENO) != 0) {}

void Progress::start(std::string label, std::uint64_t num_steps) {
  label_ = std::move(label);
  num_steps_ = num_steps;
  start_ = last_ = Clock::now();
}

void Progress::update(std::uint64_t step, double loss) {
  auto const now = Clock::now();
  auto const pause =
      is_terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10'000);
  if (!speaks_ || now - last_ < pause) return;
  last_ = now;
  double const elapsed_s = std::chrono::duration<double>(now - start_).count();
  double const left_s =
      elapsed_s * static_cast<double>(num_steps_ - step) / static_cast<double>(step);
  // On a terminal the line returns to its start and clears what an older, longer one left.
  std::fprintf(stderr, "%s%s: step %llu of %llu, loss %.4f, %.0f s left%s",
               is_terminal_ ? "\r" : "", label_.c_str(), static_cast<unsigned long long>(step),
               static_cast<unsigned long long>(num_steps_), loss, left_s,
               is_terminal_ ? "\x1b[K" : "\n");
  std::fflush(stderr);
}

void Progress::finish(std::string const& result) {
  if (!speaks_) return;
  std::fprintf(stderr, "%s%s: %s\n", is_terminal_ ? "\r\x1b[K" : "", label_.c_str(),
               result.c_str());
}

}  // namespace gradsieve::study
