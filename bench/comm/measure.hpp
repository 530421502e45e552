// SPDX-License-Identifier: Apache-2.0
// One row of gradsieve-comm: one spec, one size, measured through the hook on one rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gradsieve/hook.hpp"
#include "gradsieve/transport.hpp"

namespace gradsieve::bench {

struct Case {
  std::string spec;  ///< a spec string, or kLibraryDense for the transport library's own all-reduce
  std::uint64_t num_elements = 0;
  std::uint64_t bucket_elements = 0;  ///< handed in one after another; 0: all at once
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::mean;
  int iterations = 20;
  int warmup_iterations = 5;
  std::uint64_t seed = 1;
  bool check = true;
};
inline constexpr char kLibraryDense[] = "library all-reduce";

/// Medians over iterations, of the slowest rank where ranks differ.
struct Row {
  std::string spec;
  std::string exchange;
  std::uint64_t num_elements = 0;
  DType dtype = DType::f32;
  double wire_bytes = 0.0;       ///< handed to the transport by one rank, per step
  double predicted_bytes = 0.0;  ///< from capacities, world size and exchange alone
  double encode_us = 0.0;
  double exchange_us = 0.0;
  double decode_us = 0.0;
  double total_us = 0.0;
  /// ‖result − true‖ / ‖true‖ in the last step, the true mean or sum in double. None: not checked.
  std::optional<double> relative_error = {};
  /// Elements that are not bit for bit rank 0's, added up over ranks. None: not checked.
  std::optional<std::uint64_t> num_wrong = {};
  /// Bytes and time of the dense row of this size over this row's. None: there is no such row, or
  /// one rank, which sends nothing.
  std::optional<double> ratio = {};
  std::optional<double> vs_dense = {};
  bool supported = true;
};

/// The gradient of a rank in a step: heavy-tailed, as recorded gradients are.
void fill_gradient(std::uint64_t seed, int rank, std::uint64_t step, TensorView gradient);

/// Called by all ranks.
[[nodiscard]] std::uint64_t sum_over_ranks(Transport& transport, std::uint64_t own);

/// Row::num_wrong of a result that every rank holds. Called by all ranks.
[[nodiscard]] std::uint64_t count_wrong(Transport& transport, ConstTensorView result);

/// Runs on every rank with the same arguments.
[[nodiscard]] Row measure(Transport& transport, Case const& which);

}  // namespace gradsieve::bench
