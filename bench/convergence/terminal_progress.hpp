// SPDX-License-Identifier: Apache-2.0
// One line that says how far a study is, on stderr: rewritten on a terminal, else one each 10 s.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace gradsieve::study {

class Progress {
 public:
  /// Silent unless `speaks` (rank 0).
  explicit Progress(bool speaks);

  /// The part of the study that the next updates belong to: "mlp, none, seed 1 (2 of 6)".
  void start(std::string label, std::uint64_t num_steps);
  void update(std::uint64_t step, double loss);
  /// Replaces the line by a lasting one.
  void finish(std::string const& result);

 private:
  using Clock = std::chrono::steady_clock;

  bool speaks_;
  bool is_terminal_;
  std::string label_;
  std::uint64_t num_steps_ = 0;
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace gradsieve::study
