// SPDX-License-Identifier: Apache-2.0
// A model and its optimizer on one rank, behind an interface that needs no torch header.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/convergence/datasets.hpp"
#include "bench/convergence/study.hpp"

namespace gradsieve::study {

struct Parameter {
  std::string name;  ///< as torch names it: "fc1.weight"
  std::uint64_t num_elements = 0;
  std::uint64_t num_rows = 1;
};

/// Sums over examples (images, or characters), so that the parts of several ranks can be added.
struct Evaluation {
  double loss_sum = 0.0;
  double num_correct = 0.0;
  double num_examples = 0.0;
};

/// Used from one thread at a time; several learners may live in several threads. Nothing that it
/// computes depends on the others or on their number.
class Learner {
 public:
  virtual ~Learner() = default;

  /// In the order of the forward pass.
  [[nodiscard]] virtual std::vector<Parameter> const& parameters() const noexcept = 0;

  /// Says where the gradient of each parameter is written by compute_gradients and read by update.
  /// The memory belongs to the caller and must outlive the learner's use of it.
  virtual void bind_gradients(std::vector<std::span<float>> gradients) = 0;

  /// Forward and backward. Returns the mean loss of the batch.
  virtual double compute_gradients(Batch const& batch) = 0;
  virtual void update(double learning_rate) = 0;
  [[nodiscard]] virtual Evaluation evaluate(Batch const& batch) = 0;

  /// FNV-1a over the 32-bit patterns of all parameters.
  [[nodiscard]] virtual std::uint64_t parameter_hash() const = 0;
};

/// The same plan and seed give the same parameters, in every thread and process.
[[nodiscard]] std::unique_ptr<Learner> make_learner(TrainingPlan const& plan, std::uint64_t seed,
                                                    std::uint64_t num_classes);

/// Keeps torch to one thread in the calling thread; the ranks are the parallelism.
void pin_torch_to_one_thread();

[[nodiscard]] std::string torch_version();

}  // namespace gradsieve::study
