// SPDX-License-Identifier: Apache-2.0
// The books of error feedback: what ranks gave, what they got, what they still hold.
#pragma once

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace gradsieve::testing {

/// Of one tensor, over all ranks. Thread-safe. In units of the sum over ranks.
class Ledger {
 public:
  Ledger(std::size_t num_elements, int world_size)
      : given_(num_elements),
        got_(num_elements),
        kept_(num_elements),
        weight_(num_elements),
        world_size_(world_size) {}

  /// A rank's gradient that a step took.
  void give(std::vector<float> const& gradient) {
    std::lock_guard const lock(mutex_);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      given_[i] += gradient[i];
      weight_[i] += std::abs(double{gradient[i]});
      largest_ = std::max(largest_, std::abs(double{gradient[i]}));
    }
  }
  /// The mean of a committed step; called by one rank.
  void get(std::vector<float> const& mean) {
    std::lock_guard const lock(mutex_);
    for (std::size_t i = 0; i < mean.size(); ++i) got_[i] += double{mean[i]} * world_size_;
    ++num_steps_;
  }
  /// A rank's residual at the end.
  void keep(std::vector<float> const& residual) {
    std::lock_guard const lock(mutex_);
    for (std::size_t i = 0; i < residual.size(); ++i) {
      kept_[i] += residual[i];
      weight_[i] += std::abs(double{residual[i]});
    }
  }

  /// `own_weight`: rounding errors are bounded by what was given to the element itself (sparsifiers
  /// that send f32); otherwise by the largest element (quantizers move the error of a block
  /// around).
  void expect_balance(bool own_weight) const {
    // Each step rounds a compensated value, a residual and a weighted sum over ranks: not more than
    // 2 + 2·world_size roundings of at most 2^-24 of the mass in play.
    double const relative = (num_steps_ + 1.0) * (2.0 + 2.0 * world_size_) * 0x1p-24;
    int complaints = 0;
    for (std::size_t i = 0; i < given_.size() && complaints < 5; ++i) {
      double const mass = own_weight ? weight_[i] : largest_ * world_size_;
      bool const balanced = std::abs(got_[i] + kept_[i] - given_[i]) <= relative * mass + 1e-36;
      EXPECT_TRUE(balanced) << "element " << i << ": given " << given_[i] << ", got " << got_[i]
                            << ", kept " << kept_[i] << ", allowed " << relative * mass;
      complaints += balanced ? 0 : 1;
    }
  }
  [[nodiscard]] double kept_norm() const {
    double sum = 0.0;
    for (double const x : kept_) sum += x * x;
    return std::sqrt(sum);
  }

 private:
  std::mutex mutex_;
  std::vector<double> given_;
  std::vector<double> got_;
  std::vector<double> kept_;
  std::vector<double> weight_;
  double largest_ = 0.0;
  double num_steps_ = 0.0;
  int world_size_;
};

}  // namespace gradsieve::testing
