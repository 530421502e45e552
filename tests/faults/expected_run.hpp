// SPDX-License-Identifier: Apache-2.0
// The same training without any fault, played by threads of this process: what every rank should
// hold after the steps that count.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {

using Residuals = std::vector<std::vector<float>>;  ///< [tensor]

struct ExpectedRun {
  std::vector<Residuals> residuals;  ///< [rank]
  std::vector<float> last_results;
  std::vector<double> sent;  ///< world_size · the means of all steps, one tensor behind another
};

[[nodiscard]] inline ExpectedRun expected_run(int world_size, HookOptions options,
                                              Layout const& layout, std::uint64_t num_steps,
                                              GradientOf const& gradient_of = heavy_tailed_of) {
  ExpectedRun run;
  run.residuals.resize(static_cast<std::size_t>(world_size));
  std::uint64_t num_elements = 0;
  for (TensorDesc const& tensor : layout.tensors) num_elements += tensor.num_elements;
  run.sent.resize(static_cast<std::size_t>(num_elements));
  options.exchange_deadline = std::chrono::seconds(60);
  options.vote_deadline = std::chrono::seconds(120);
  test::run_ranks(world_size, [&](Transport& transport) {
    HookRank rank(transport, options, layout);
    for (std::uint64_t step = 0; step < num_steps; ++step) {
      rank.step(step, gradient_of);
      if (transport.rank() != 0) continue;
      run.last_results = rank.all_results();
      for (std::size_t i = 0; i < run.sent.size(); ++i)
        run.sent[i] += double{run.last_results[i]} * world_size;
    }
    run.residuals[static_cast<std::size_t>(transport.rank())] = rank.all_residuals();
  });
  return run;
}

/// Promise 4, for a step that did not count. Empty if it is kept.
///   exact: bit for bit as before       merge: the gradient waits in the residual
[[nodiscard]] inline std::string compare_after_rollback(HookRank const& rank, Rollback rollback,
                                                        Residuals const& before,
                                                        std::uint64_t failed_step,
                                                        GradientOf const& gradient_of) {
  Residuals const after = rank.all_residuals();
  for (std::size_t t = 0; t < after.size(); ++t) {
    TensorDesc const& tensor = rank.layout().tensors[t];
    std::vector<float> const given =
        gradient_of(rank.rank(), failed_step, tensor.name, tensor.num_elements);
    double largest = 0.0;
    for (std::size_t i = 0; i < given.size(); ++i)
      largest = std::max(largest, std::abs(double{given[i]}) + std::abs(double{before[t][i]}));
    for (std::size_t i = 0; i < given.size(); ++i) {
      bool const kept = rollback == Rollback::exact
                            ? bits_of({after[t][i]}) == bits_of({before[t][i]})
                            // (c − ĉ) + ĉ: three roundings of numbers not above the largest.
                            : std::abs(double{after[t][i]} - double{given[i]} -
                                       double{before[t][i]}) <= 0x1p-22 * largest;
      if (!kept) {
        return tensor.name + ", element " + std::to_string(i) + ": residual " +
               std::to_string(after[t][i]) + " after a step that does not count, " +
               std::to_string(before[t][i]) + " before, gradient " + std::to_string(given[i]);
      }
    }
  }
  return "";
}

/// Bit for bit what the run without a fault has. Empty if so.
[[nodiscard]] inline std::string compare_exactly(Residuals const& actual,
                                                 Residuals const& expected) {
  for (std::size_t t = 0; t < actual.size(); ++t) {
    if (bits_of(actual[t]) != bits_of(expected[t]))
      return "the residual of tensor " + std::to_string(t) + " is not that of a run without fault";
  }
  return "";
}

/// Σ of all ranks' gradients of a range of steps, one tensor behind another.
inline void add_gradients(std::vector<double>& sum, Layout const& layout, int rank,
                          std::uint64_t first_step, std::uint64_t end_step,
                          GradientOf const& gradient_of = heavy_tailed_of) {
  for (std::uint64_t step = first_step; step < end_step; ++step) {
    auto at = sum.begin();
    for (TensorDesc const& tensor : layout.tensors)
      for (float const x : gradient_of(rank, step, tensor.name, tensor.num_elements)) *at++ += x;
  }
}

}  // namespace gradsieve::testing
