// SPDX-License-Identifier: Apache-2.0
#include "bench/micro/paired.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <time.h>

namespace gradsieve::bench {

Interval interval_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  auto const count = static_cast<double>(values.size());
  double const reach = 0.98 * std::sqrt(count);  // 1.96 standard deviations of a binomial of 1/2
  auto const last = static_cast<double>(values.size() - 1);
  auto const at = [&](double rank) {
    return values[static_cast<std::size_t>(std::clamp(rank, 0.0, last))];
  };
  double const middle = values.size() % 2 == 1
                            ? values[values.size() / 2]
                            : (values[values.size() / 2 - 1] + values[values.size() / 2]) / 2;
  return {middle, at(std::floor(count / 2 - reach)), at(std::ceil(count / 2 + reach))};
}

double now_seconds(Timing timing) {
  timespec now = {};
  clock_gettime(timing == Timing::thread_cpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

PairedRounds::PairedRounds(Timing timing, std::vector<Work> works)
    : timing_(timing), works_(std::move(works)), order_(works_.size()), seconds_(works_.size()) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
}

void PairedRounds::round() {
  std::ranges::shuffle(order_, random_);
  for (std::size_t const i : order_) {
    if (works_[i].prepare) works_[i].prepare();
    double const start = now_seconds(timing_);
    works_[i].run();
    seconds_[i].push_back(now_seconds(timing_) - start);
  }
}

Interval PairedRounds::ratio(std::size_t work) const {
  std::vector<double> ratios(seconds_[work].size());
  for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] = seconds_[work][i] / seconds_[0][i];
  return interval_of(std::move(ratios));
}

}  // namespace gradsieve::bench
