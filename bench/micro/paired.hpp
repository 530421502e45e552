// SPDX-License-Identifier: Apache-2.0
// How time is compared here: pieces of work run in turn, in an order drawn anew each round, so that
// a slow moment of the machine meets all of them; ratios are taken within a round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

namespace gradsieve::bench {

/// Median and the interval that holds the true median in 95 % of cases (order statistics).
struct Interval {
  double median = 0.0;
  double low = 0.0;
  double high = 0.0;
};
[[nodiscard]] Interval interval_of(std::vector<double> values);

/// The clock of a measurement: the thread's CPU time where one thread works, else wall time.
enum class Timing { thread_cpu, wall };
[[nodiscard]] double now_seconds(Timing timing);

/// The first piece of work is the yardstick, the second is the same again (the A/A control).
class PairedRounds {
 public:
  struct Work {
    std::function<void()> prepare;  ///< not timed
    std::function<void()> run;
  };

  PairedRounds(Timing timing, std::vector<Work> works);

  void round();  ///< runs all of them once
  [[nodiscard]] std::vector<double> const& seconds(std::size_t work) const {
    return seconds_[work];
  }
  /// seconds(work) / seconds(0), round by round.
  [[nodiscard]] Interval ratio(std::size_t work) const;

 private:
  Timing timing_;
  std::vector<Work> works_;
  std::vector<std::size_t> order_;
  std::vector<std::vector<double>> seconds_;
  std::mt19937 random_{20};
};

}  // namespace gradsieve::bench
