// SPDX-License-Identifier: Apache-2.0
// Trains one model with one spec and one seed over all ranks.
#pragma once

#include <string>

#include "gradsieve/transport.hpp"

#include "bench/convergence/datasets.hpp"
#include "bench/convergence/study.hpp"
#include "bench/convergence/terminal_progress.hpp"

namespace gradsieve::study {

/// Bytes that a rank sends in a step without compression, as the mean over the ranks.
struct DenseStepBytes {
  double fp32 = 0.0;
  double bf16 = 0.0;
};

/// One training: what is the same on all ranks.
struct Run {
  StudyPlan const& study;
  TrainingPlan const& training;
  Dataset const& dataset;
  std::string spec;
  std::uint64_t seed = 0;
  DenseStepBytes dense;
  bool writes_gradients = false;
};

/// The number of steps that a training has, from its epochs where it does not say.
[[nodiscard]] std::uint64_t steps_of(TrainingPlan const& training,
                                     std::uint64_t num_training_examples, int world_size);

/// Trains on one rank. Rank 0 returns the record of the run, the others a record without rows.
/// Throws Error; with Code::mismatch if the ranks end with different parameters.
[[nodiscard]] RunRecord train(Run const& run, Transport& transport, Progress* progress);

/// Known on rank 0 only, which alone needs it.
[[nodiscard]] DenseStepBytes measure_dense_bytes(Run const& run, Transport& transport);

}  // namespace gradsieve::study
