// SPDX-License-Identifier: Apache-2.0
// Two optimisations with known results to twelve digits: top-k under error feedback, and a cyclic
// leader. Once in double on the templates that the reference kernels are made of, once in f32
// through the compressors themselves.
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/ref/feedback.hpp"
#include "kernels/ref/sparse.hpp"
#include "kernels/ref/topk.hpp"
#include "tests/support/simulated_ranks.hpp"

namespace gradsieve::testing {
namespace {

constexpr int kNumRanks = 4;
constexpr std::size_t kNumElements = 32;
constexpr int kNumSteps = 40;
constexpr std::size_t kKept = 4;
constexpr double kLearningRate = 0.1;
constexpr double kLeastLoss = 2.8709957617606148;

using Doubles = std::vector<double>;
using Indices = std::vector<std::uint32_t>;

/// f_i(x) = ½ Σ_j a_j (x_j − b_ij)²
struct Problem {
  Doubles a = Doubles(kNumElements);
  std::vector<Doubles> b = std::vector<Doubles>(kNumRanks, Doubles(kNumElements));

  Problem() {
    for (std::size_t j = 0; j < kNumElements; ++j) {
      auto const x = static_cast<double>(j);
      a[j] = 1 + 0.5 * std::sin(x + 1);
      for (std::size_t i = 0; i < kNumRanks; ++i) {
        double const phase = 1 + 3 * static_cast<double>(i) + 0.7 * x;
        double const spread = 1 + 0.1 * static_cast<double>(j % 5);
        b[i][j] = 2 * std::cos(0.4 * x) + 0.5 * std::sin(phase) * spread;
      }
    }
  }

  [[nodiscard]] Doubles gradient(int rank, Doubles const& x) const {
    Doubles g(kNumElements);
    for (std::size_t j = 0; j < kNumElements; ++j) {
      g[j] = a[j] * (x[j] - b[static_cast<std::size_t>(rank)][j]);
    }
    return g;
  }
  [[nodiscard]] double loss(Doubles const& x) const {
    double sum = 0;
    for (Doubles const& target : b) {
      for (std::size_t j = 0; j < kNumElements; ++j) {
        sum += 0.5 * a[j] * (x[j] - target[j]) * (x[j] - target[j]);
      }
    }
    return sum / kNumRanks;
  }
};

double sum_squares(std::vector<Doubles> const& vectors) {
  double sum = 0;
  for (Doubles const& vector : vectors) {
    for (double const x : vector) sum += x * x;
  }
  return sum;
}

struct Result {
  Doubles x = Doubles(kNumElements, 0.0);
  std::vector<Doubles> residuals = std::vector<Doubles>(kNumRanks, Doubles(kNumElements, 0.0));
  std::vector<std::vector<Indices>> sent;  ///< [step][rank]
  double conservation_error = 0;           ///< largest |Σ sent + r − Σ g|

  [[nodiscard]] std::set<std::uint32_t> united(std::size_t step) const {
    std::set<std::uint32_t> all;
    for (Indices const& indices : sent[step]) all.insert(indices.begin(), indices.end());
    return all;
  }
  [[nodiscard]] std::uint64_t sum_of_indices(std::size_t step) const {
    return std::accumulate(sent[step][0].begin(), sent[step][0].end(), std::uint64_t{0});
  }
  [[nodiscard]] std::uint64_t sum_of_indices() const {
    std::uint64_t sum = 0;
    for (std::size_t step = 0; step < sent.size(); ++step) sum += sum_of_indices(step);
    return sum;
  }
};

/// choose(step, c of all ranks): the set of each rank.
Result run_in_double(std::function<std::vector<Indices>(int, std::vector<Doubles> const&)> choose) {
  Problem const problem;
  Result result;
  std::vector<Doubles> total(kNumRanks, Doubles(kNumElements, 0.0));
  for (int step = 0; step < kNumSteps; ++step) {
    for (int rank = 0; rank < kNumRanks; ++rank) {
      auto const r = static_cast<std::size_t>(rank);
      Doubles const g = problem.gradient(rank, result.x);
      kernels::Flags flags = 0;
      for (std::size_t j = 0; j < kNumElements; ++j) {
        double& e = result.residuals[r][j];
        e = kernels::ref::compensated(g[j], 1.0, e, flags);
        total[r][j] += g[j];
      }
    }
    std::vector<Indices> const sets = choose(step, result.residuals);
    Doubles sum(kNumElements, 0.0);
    for (std::size_t r = 0; r < kNumRanks; ++r) {
      Doubles values(kKept);
      kernels::ref::take_selected<double>(sets[r], 1, result.residuals[r], values);
      for (std::size_t k = 0; k < kKept; ++k) {
        sum[sets[r][k]] += values[k];
        total[r][sets[r][k]] -= values[k];
      }
    }
    for (std::size_t j = 0; j < kNumElements; ++j) {
      result.x[j] -= kLearningRate * (sum[j] / kNumRanks);
    }
    result.sent.push_back(sets);
  }
  for (std::size_t r = 0; r < kNumRanks; ++r) {
    for (std::size_t j = 0; j < kNumElements; ++j) {
      result.conservation_error =
          std::max(result.conservation_error, std::fabs(total[r][j] - result.residuals[r][j]));
    }
  }
  return result;
}

Indices top(Doubles const& c) {
  Indices indices(kKept);
  kernels::ref::choose_topk<double>(c, indices);
  return indices;
}

/// The same through a chain: gradients are rounded to f32, x stays in double.
Result run_through(std::string const& spec) {
  Problem const problem;
  Result result;
  SimulatedRanks ranks(make_chain(spec), whole_tensor("x", kNumElements),
                       {.world_size = kNumRanks});
  for (int step = 0; step < kNumSteps; ++step) {
    std::vector<Floats> gradients;
    for (int rank = 0; rank < kNumRanks; ++rank) {
      Doubles const g = problem.gradient(rank, result.x);
      gradients.emplace_back(g.begin(), g.end());
    }
    Outcome const outcome = ranks.step(static_cast<std::uint64_t>(step), gradients);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
    Indices united;
    for (std::size_t j = 0; j < kNumElements; ++j) {
      result.x[j] -= kLearningRate * outcome.mean[j];
      if (outcome.mean[j] != 0.0F) united.push_back(static_cast<std::uint32_t>(j));
    }
    result.sent.push_back({united});
  }
  for (int rank = 0; rank < kNumRanks; ++rank) {
    Floats const e = ranks.residual(rank);
    result.residuals[static_cast<std::size_t>(rank)].assign(e.begin(), e.end());
  }
  return result;
}

struct Expected {
  double excess_loss;
  double x3;
  double x_squares;
  double residual_squares;
};
constexpr Expected kTopk = {7.453337763054e-02, 0.655649395314, 60.992491007566, 288.157435601969};
constexpr Expected kLeader = {3.199451951214e-02, 0.691847139988, 62.275925117475,
                              301.617547693090};

void expect_result(Result const& result, Expected const& expected, double relative) {
  auto const near = [relative](double value, double wanted) {
    EXPECT_NEAR(value, wanted, relative * std::fabs(wanted));
  };
  near(Problem().loss(result.x) - kLeastLoss, expected.excess_loss);
  near(result.x[3], expected.x3);
  near(sum_squares({result.x}), expected.x_squares);
  near(sum_squares(result.residuals), expected.residual_squares);
}

TEST(CoherentChecks, TheProblemIsTheOneDescribed) {
  Problem const problem;

  EXPECT_NEAR(problem.loss(Doubles(kNumElements, 0.0)), 35.48203261727079, 1e-12);
  EXPECT_NEAR(std::accumulate(problem.a.begin(), problem.a.end(), 0.0), 32.21371969609532, 1e-12);
}

TEST(CoherentChecks, C1TopkUnderErrorFeedbackInDouble) {
  Result const result = run_in_double([](int, std::vector<Doubles> const& c) {
    std::vector<Indices> sets;
    for (Doubles const& own : c) sets.push_back(top(own));
    return sets;
  });

  expect_result(result, kTopk, 1e-9);
  EXPECT_THAT(result.sent[0][0], ::testing::ElementsAre(0, 1, 6, 7));
  EXPECT_EQ(result.united(0).size(), 8U);
  EXPECT_EQ(result.united(39).size(), 14U);
  EXPECT_LE(result.conservation_error, 1e-13);
}

TEST(CoherentChecks, C3ACyclicLeaderInDouble) {
  Result const result = run_in_double([](int step, std::vector<Doubles> const& c) {
    return std::vector<Indices>(kNumRanks, top(c[static_cast<std::size_t>(step % kNumRanks)]));
  });

  expect_result(result, kLeader, 1e-9);
  EXPECT_EQ(result.sum_of_indices(0), 14U);
  EXPECT_EQ(result.sum_of_indices(39), 37U);
  EXPECT_EQ(result.sum_of_indices(), 2384U);
}

// f32 rounds g, g + e and the mean once each: about 3·2^-24 of numbers up to 20 per step. The
// problem contracts, so 40 steps stay below 1e-5 of the results unless a different index is chosen.
constexpr double kF32Tolerance = 1e-5;

TEST(CoherentChecks, C1TopkUnderErrorFeedbackThroughTheChain) {
  Result const result = run_through("topk(density=0.125) ; feedback=residual");

  expect_result(result, kTopk, kF32Tolerance);
  EXPECT_EQ(result.united(0).size(), 8U);
  EXPECT_EQ(result.united(39).size(), 14U);
}

TEST(CoherentChecks, C3ACyclicLeaderThroughTheChain) {
  Result const result = run_through("cltk(density=0.125) ; feedback=residual");

  expect_result(result, kLeader, kF32Tolerance);
  EXPECT_EQ(result.sum_of_indices(0), 14U);
  EXPECT_EQ(result.sum_of_indices(39), 37U);
  EXPECT_EQ(result.sum_of_indices(), 2384U);
}

}  // namespace
}  // namespace gradsieve::testing
