// SPDX-License-Identifier: Apache-2.0
// The command line of gradsieve-study, made into a plan.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/convergence/study.hpp"

namespace gradsieve::study {

/// Thrown for what cannot be run as asked; what() says what was expected. Exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The plan, or the exit code after --help and after errors, which are printed here.
struct ParsedCommandLine {
  std::optional<StudyPlan> plan;
  std::string title;
  int exit_code = 0;
};
[[nodiscard]] ParsedCommandLine parse_command_line(int argc, char const* const* argv);

/// "3": three seeds 1, 2, 3. "5,9": these. "7,": only 7.
[[nodiscard]] std::vector<std::uint64_t> parse_seeds(std::string const& text);

/// "1Gbit/s,50us", either part alone, or units left out (bits per second, microseconds).
struct LinkRequest {
  double bits_per_s = 0.0;
  double latency_us = 0.0;
};
[[nodiscard]] LinkRequest parse_limit(std::string const& text);

/// The study that `demo` runs: an MLP over three epochs and a short CNN; one seed and one epoch if
/// `is_short`.
[[nodiscard]] StudyPlan demo_plan(bool is_short);

}  // namespace gradsieve::study
