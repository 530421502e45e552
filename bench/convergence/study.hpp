// SPDX-License-Identifier: Apache-2.0
// What a study is made of: a plan that says what to train, and a record of what came out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace gradsieve::study {

enum class ModelKind { mlp, cnn, transformer };
enum class OptimizerKind { sgd, adamw };

[[nodiscard]] char const* name_of(ModelKind model) noexcept;
[[nodiscard]] char const* name_of(OptimizerKind optimizer) noexcept;

/// What one model is trained with. Every spec is trained once per seed.
struct TrainingPlan {
  ModelKind model = ModelKind::mlp;
  OptimizerKind optimizer = OptimizerKind::sgd;
  std::vector<std::string> specs;
  std::vector<std::uint64_t> seeds;
  std::uint64_t num_steps = 0;  ///< 0: follows from num_epochs
  double num_epochs = 1.0;
  std::uint64_t batch_examples = 64;  ///< per rank and step
  double learning_rate = 0.05;        ///< falls linearly to 0 over the run
  double momentum = 0.9;              ///< of SGD
  double weight_decay = 0.0;
  std::uint64_t record_every_steps = 10;
  std::uint64_t evaluate_every_steps = 0;  ///< 0: ten times a run
};

enum class TransportKind { local, mpi };

/// What all trainings of a study share.
struct StudyPlan {
  std::vector<TrainingPlan> trainings;
  TransportKind transport = TransportKind::local;
  int num_ranks = 4;
  std::uint64_t bucket_bytes = 25'000'000;
  double limit_bits_per_s = 0.0;  ///< 0: as fast as the transport is
  double limit_latency_us = 0.0;
  std::uint64_t timeout_s = 60;
  std::filesystem::path image_folder;
  std::filesystem::path text_file;  ///< empty: the text is asked of the `bible` program
  std::filesystem::path run_folder;
  std::filesystem::path gradient_folder;  ///< empty: no gradients are written
  std::vector<std::uint64_t> gradient_steps;
};

/// One line of metrics.jsonl: where a training stands after `step` steps. Bytes and seconds are
/// sums since the start, as the mean over the ranks.
struct MetricsRow {
  std::uint64_t step = 0;
  double epoch = 0.0;
  double loss = 0.0;           ///< mean training loss of all ranks since the row before
  double validation_loss = 0;  ///< NaN where it was not measured
  double accuracy = 0.0;       ///< NaN where it was not measured
  double wire_bytes = 0.0;
  double dense_bytes = 0.0;  ///< what fp32 gradients would have cost on this transport
  double encode_s = 0.0;
  double exchange_s = 0.0;
  double decode_s = 0.0;
  double compute_s = 0.0;  ///< CPU time of forward, backward and update
  double wall_s = 0.0;     ///< without validation
  double residual_norm = 0.0;
};

/// One line of summary.csv, and the way there.
struct RunRecord {
  std::string model;
  std::string spec;
  std::uint64_t seed = 0;
  int world_size = 1;
  std::uint64_t num_steps = 0;
  double train_loss = 0.0;
  double validation_loss = 0.0;
  double accuracy = 0.0;
  std::uint64_t wire_bytes = 0;
  std::uint64_t dense_fp32_bytes = 0;
  std::uint64_t dense_bf16_bytes = 0;
  double encode_s = 0.0;
  double exchange_s = 0.0;
  double decode_s = 0.0;
  double compute_s = 0.0;
  double wall_s = 0.0;
  std::uint64_t parameter_hash = 0;
  std::vector<MetricsRow> rows;
};

/// What the report says about the study as a whole.
struct StudyRecord {
  std::string title;
  std::string started_at;
  std::string command_line;
  std::string git_commit;
  std::string host;
  std::string versions;
  std::vector<std::string> notes;
  std::vector<RunRecord> runs;
};

}  // namespace gradsieve::study
