// SPDX-License-Identifier: Apache-2.0
#include "bench/convergence/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>

#include "bench/convergence/gradient_exchange.hpp"
#include "bench/convergence/learner.hpp"
#include "core/npy.hpp"

namespace gradsieve::study {
namespace {

constexpr std::uint64_t kEvaluationBatch = 500;
// Enough to see a curve; the last evaluation of a run takes all examples.
constexpr std::uint64_t kQuickEvaluation = 2000;
constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

// CPU time, because rank threads may share cores: it is what a rank would need on its own.
double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::uint64_t whole(double value) { return static_cast<std::uint64_t>(std::llround(value)); }

// The training loop of one rank.
class RankTrainer {
 public:
  RankTrainer(Run const& run, Transport& transport, Progress* progress)
      : run_(run),
        transport_(transport),
        progress_(progress),
        num_steps_(
            steps_of(run.training, run.dataset.num_training_examples(), transport.world_size())),
        learner_(make_learner(run.training, run.seed, run.dataset.num_classes())),
        exchange_(transport, learner_->parameters(), run.spec, run.seed, run.study) {
    learner_->bind_gradients(exchange_.gradients());
    record_.model = name_of(run.training.model);
    record_.spec = run.spec;
    record_.seed = run.seed;
    record_.world_size = transport.world_size();
    record_.num_steps = num_steps_;
  }

  RunRecord train() {
    auto const is_multiple = [](std::uint64_t step, std::uint64_t every) {
      return every != 0 && step % every == 0;
    };
    std::uint64_t const evaluate_every = run_.training.evaluate_every_steps != 0
                                             ? run_.training.evaluate_every_steps
                                             : std::max<std::uint64_t>(1, num_steps_ / 10);
    auto wall_start = Clock::now();
    for (std::uint64_t step = 0; step < num_steps_; ++step) {
      std::uint64_t const done = step + 1;
      if (!one_step(step)) {
        // Nothing is left to learn from a loss that is not finite.
        record_.num_steps = done;
        record(done, false);
        break;
      }
      bool const evaluates = done == num_steps_ || is_multiple(done, evaluate_every);
      if (!evaluates && !is_multiple(done, run_.training.record_every_steps)) continue;
      wall_s_ += std::chrono::duration<double>(Clock::now() - wall_start).count();
      record(done, evaluates);
      wall_start = Clock::now();
    }
    finish();
    return std::move(record_);
  }

 private:
  // False if the gradients are no longer finite.
  bool one_step(std::uint64_t step) {
    double const cpu_start = thread_cpu_seconds();
    run_.dataset.training_batch(run_.seed, step, transport_.rank(), transport_.world_size(),
                                run_.training.batch_examples, batch_);
    double const loss = learner_->compute_gradients(batch_);
    compute_s_ += thread_cpu_seconds() - cpu_start;
    loss_sum_ += loss;
    ++loss_count_;
    if (run_.writes_gradients) write_gradients(step);

    if (!exchange_.reduce(step)) return false;

    double const update_start = thread_cpu_seconds();
    double const progress = static_cast<double>(step) / static_cast<double>(num_steps_);
    learner_->update(run_.training.learning_rate * (1.0 - progress));
    compute_s_ += thread_cpu_seconds() - update_start;
    if (progress_ != nullptr) progress_->update(step + 1, loss);
    return true;
  }

  // Each rank evaluates its share of the examples; sums are added on rank 0 in rank order.
  Evaluation evaluate(std::uint64_t num_examples) {
    auto const rank = static_cast<std::uint64_t>(transport_.rank());
    auto const world_size = static_cast<std::uint64_t>(transport_.world_size());
    std::uint64_t const end = (rank + 1) * num_examples / world_size;
    Evaluation total;
    for (std::uint64_t first = rank * num_examples / world_size; first < end;) {
      std::uint64_t const count = std::min(kEvaluationBatch, end - first);
      run_.dataset.validation_batch(first, count, batch_);
      Evaluation const part = learner_->evaluate(batch_);
      total.loss_sum += part.loss_sum;
      total.num_correct += part.num_correct;
      total.num_examples += part.num_examples;
      first += count;
    }
    return total;
  }

  void record(std::uint64_t step, bool evaluates) {
    std::uint64_t const available = run_.dataset.num_validation_examples();
    Evaluation evaluation;
    if (evaluates)
      evaluation = evaluate(step == num_steps_ ? available : std::min(available, kQuickEvaluation));
    ExchangeTotals const totals = exchange_.totals();
    double const mine[] = {loss_sum_ / static_cast<double>(std::max<std::uint64_t>(1, loss_count_)),
                           static_cast<double>(totals.wire_bytes),
                           totals.encode_s,
                           totals.exchange_s,
                           totals.decode_s,
                           compute_s_,
                           totals.residual_norm,
                           evaluation.loss_sum,
                           evaluation.num_correct,
                           evaluation.num_examples};
    loss_sum_ = 0.0;
    loss_count_ = 0;
    constexpr std::size_t kCount = std::size(mine);
    auto const all = gather_to_first_rank(transport_, mine, run_.study);
    if (transport_.rank() != 0) return;
    double sum[kCount] = {};
    for (std::size_t i = 0; i < all.size(); ++i) sum[i % kCount] += all[i];
    auto const ranks = static_cast<double>(transport_.world_size());
    std::uint64_t const step_examples =
        run_.training.batch_examples * static_cast<std::uint64_t>(transport_.world_size());
    MetricsRow row;
    row.step = step;
    row.epoch = static_cast<double>(step * step_examples) /
                static_cast<double>(run_.dataset.num_training_examples());
    row.loss = sum[0] / ranks;
    row.wire_bytes = sum[1] / ranks;
    row.dense_bytes = run_.dense.fp32 * static_cast<double>(step);
    row.encode_s = sum[2] / ranks;
    row.exchange_s = sum[3] / ranks;
    row.decode_s = sum[4] / ranks;
    row.compute_s = sum[5] / ranks;
    row.residual_norm = sum[6] / ranks;
    row.wall_s = wall_s_;
    row.validation_loss = evaluates ? sum[7] / sum[9] : kNotMeasured;
    row.accuracy = evaluates ? sum[8] / sum[9] : kNotMeasured;
    record_.rows.push_back(row);
  }

  void finish() {
    std::uint64_t const hash = learner_->parameter_hash();
    // A double holds 32 bits exactly, 64 it does not.
    double const halves[] = {static_cast<double>(hash >> 32),
                             static_cast<double>(hash & 0xffff'ffff)};
    auto const all = gather_to_first_rank(transport_, halves, run_.study);
    record_.parameter_hash = hash;
    if (transport_.rank() != 0) return;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i] == halves[i % 2]) continue;
      throw Error(Code::mismatch,
                  "rank " + std::to_string(i / 2) + " ended with other parameters than rank 0 (" +
                      record_.model + ", " + record_.spec + ", seed " +
                      std::to_string(record_.seed) + "); expected the same bits on all ranks");
    }
    MetricsRow const& last = record_.rows.back();
    record_.validation_loss = last.validation_loss;
    record_.accuracy = last.accuracy;
    record_.train_loss = recent_training_loss();
    record_.wire_bytes = whole(last.wire_bytes);
    record_.dense_fp32_bytes = whole(run_.dense.fp32 * static_cast<double>(record_.num_steps));
    record_.dense_bf16_bytes = whole(run_.dense.bf16 * static_cast<double>(record_.num_steps));
    record_.encode_s = last.encode_s;
    record_.exchange_s = last.exchange_s;
    record_.decode_s = last.decode_s;
    record_.compute_s = last.compute_s;
    record_.wall_s = last.wall_s;
  }

  // The mean over the last tenth of the steps: one batch alone says little.
  double recent_training_loss() const {
    double sum = 0.0;
    double weight = 0.0;
    std::uint64_t previous_step = 0;
    for (MetricsRow const& row : record_.rows) {
      auto const num_steps = static_cast<double>(row.step - previous_step);
      previous_step = row.step;
      if (row.step * 10 <= record_.num_steps * 9) continue;
      sum += row.loss * num_steps;
      weight += num_steps;
    }
    return sum / weight;
  }

  void write_gradients(std::uint64_t step) const {
    auto const& steps = run_.study.gradient_steps;
    if (std::find(steps.begin(), steps.end(), step) == steps.end()) return;
    auto const folder = run_.study.gradient_folder / record_.model /
                        ("step" + std::to_string(step)) /
                        ("rank" + std::to_string(transport_.rank()));
    std::filesystem::create_directories(folder);
    auto const& parameters = learner_->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      std::uint64_t const rows = parameters[i].num_rows;
      std::vector<std::uint64_t> shape = {parameters[i].num_elements};
      if (rows > 1) shape = {rows, parameters[i].num_elements / rows};
      write_npy(folder / (parameters[i].name + ".npy"),
                std::span<float const>(exchange_.gradients()[i]), shape);
    }
  }

  Run const& run_;
  Transport& transport_;
  Progress* progress_;
  std::uint64_t num_steps_;
  std::unique_ptr<Learner> learner_;
  GradientExchange exchange_;
  Batch batch_;
  RunRecord record_;
  double loss_sum_ = 0.0;
  std::uint64_t loss_count_ = 0;
  double compute_s_ = 0.0;
  double wall_s_ = 0.0;
};

}  // namespace

std::uint64_t steps_of(TrainingPlan const& training, std::uint64_t num_training_examples,
                       int world_size) {
  if (training.num_steps != 0) return training.num_steps;
  std::uint64_t const per_step = training.batch_examples * static_cast<std::uint64_t>(world_size);
  auto const per_epoch =
      static_cast<double>(std::max<std::uint64_t>(1, num_training_examples / per_step));
  return std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(std::llround(training.num_epochs * per_epoch)));
}

RunRecord train(Run const& run, Transport& transport, Progress* progress) {
  pin_torch_to_one_thread();
  return RankTrainer(run, transport, transport.rank() == 0 ? progress : nullptr).train();
}

DenseStepBytes measure_dense_bytes(Run const& run, Transport& transport) {
  pin_torch_to_one_thread();
  auto const learner = make_learner(run.training, 0, run.dataset.num_classes());
  auto const bytes_of = [&](char const* spec) {
    return static_cast<double>(
        measure_step_bytes(transport, learner->parameters(), spec, run.study));
  };
  double const mine[] = {bytes_of("none"), bytes_of("bf16")};
  auto const all = gather_to_first_rank(transport, mine, run.study);
  DenseStepBytes mean;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    mean.fp32 += all[i] / transport.world_size();
    mean.bf16 += all[i + 1] / transport.world_size();
  }
  return mean;
}

}  // namespace gradsieve::study
