// SPDX-License-Identifier: Apache-2.0
// gradsieve-study: trains models with each spec and seed, and reports loss and accuracy against
// bytes.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>

#include <unistd.h>

#include "bench/convergence/learner.hpp"
#include "bench/convergence/options.hpp"
#include "bench/convergence/ranks.hpp"
#include "bench/convergence/run_folder.hpp"
#include "bench/convergence/summary.hpp"
#include "bench/convergence/trainer.hpp"

namespace gradsieve::study {
namespace {

// The pools of OpenMP and OpenBLAS fight for cores when every rank opens one, and sums then depend
// on the thread count. Both read their environment before main: the program starts itself once
// more.
void pin_math_threads(char* const* argv) {
  constexpr char const* kVariables[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                                        "MKL_NUM_THREADS"};
  bool pinned = true;
  for (char const* name : kVariables) {
    char const* const value = std::getenv(name);
    pinned = pinned && value != nullptr && std::string_view(value) == "1";
    setenv(name, "1", 1);
  }
  if (!pinned) execv("/proc/self/exe", argv);
  // Where that fails the variables still hold for what is loaded later.
}

std::unique_ptr<Dataset> load_dataset(StudyPlan const& plan, ModelKind model) {
  try {
    return model == ModelKind::transformer ? load_text(plan.text_file)
                                           : load_images(plan.image_folder);
  } catch (Error const& error) {
    throw UsageError(error.what());
  }
}

// Before the training, so that its results have a place to go.
void make_run_folder(StudyPlan const& plan) {
  std::error_code error;
  std::filesystem::create_directories(plan.run_folder, error);
  if (error || ::access(plan.run_folder.c_str(), W_OK) != 0) {
    throw UsageError("--out '" + plan.run_folder.string() + "' is no folder that can be written");
  }
}

std::string run_label(Run const& run, std::size_t index, std::size_t count) {
  return std::string("[") + std::to_string(index) + "/" + std::to_string(count) + "] " +
         name_of(run.training.model) + ", " + run.spec + ", seed " + std::to_string(run.seed);
}

std::string run_result(RunRecord const& record) {
  if (!std::isfinite(record.validation_loss)) {
    return "diverged in step " + std::to_string(record.num_steps);
  }
  char text[160];
  std::snprintf(
      text, sizeof(text), "loss %.4f, accuracy %.2f %%, %.1f kB a step, %.0f s",
      record.validation_loss, 100.0 * record.accuracy,
      static_cast<double>(record.wire_bytes) / 1e3 / static_cast<double>(record.num_steps),
      record.wall_s);
  return text;
}

class Study {
 public:
  Study(StudyPlan const& plan, Ranks& ranks)
      : plan_(plan), ranks_(ranks), progress_(ranks.has_first_rank()) {
    for (TrainingPlan const& training : plan.trainings)
      num_runs_ += training.specs.size() * training.seeds.size();
  }

  std::vector<RunRecord> run_all() {
    // Data first: what is missing is said before hours of training.
    std::vector<std::unique_ptr<Dataset>> datasets;
    for (TrainingPlan const& training : plan_.trainings)
      datasets.push_back(load_dataset(plan_, training.model));
    if (ranks_.has_first_rank()) make_run_folder(plan_);
    std::vector<RunRecord> records;
    for (std::size_t i = 0; i < datasets.size(); ++i)
      run_training(plan_.trainings[i], *datasets[i], records);
    return records;
  }

 private:
  void run_training(TrainingPlan const& training, Dataset const& dataset,
                    std::vector<RunRecord>& records) {
    Run run{plan_, training, dataset, "none", 0, {}, false};
    static_cast<void>(ranks_.run([&run](Transport& transport) {
      DenseStepBytes const dense = measure_dense_bytes(run, transport);
      if (transport.rank() == 0) run.dense = dense;
      return RunRecord{};
    }));
    for (std::uint64_t const seed : training.seeds) {
      for (std::string const& spec : training.specs) {
        run.spec = spec;
        run.seed = seed;
        run.writes_gradients = !plan_.gradient_folder.empty() && seed == training.seeds.front() &&
                               spec == training.specs.front();
        std::uint64_t const num_steps =
            steps_of(training, dataset.num_training_examples(), plan_.num_ranks);
        progress_.start(run_label(run, records.size() + 1, num_runs_), num_steps);
        records.push_back(
            ranks_.run([&](Transport& transport) { return train(run, transport, &progress_); }));
        if (!records.back().rows.empty()) progress_.finish(run_result(records.back()));
      }
    }
  }

  StudyPlan const& plan_;
  Ranks& ranks_;
  Progress progress_;
  std::size_t num_runs_ = 0;
};

std::string command_line(int argc, char* const* argv) {
  std::string text = "gradsieve-study";
  for (int i = 1; i < argc; ++i) {
    std::string const argument = argv[i];
    bool const is_plain = argument.find_first_of(" |;()&<>$'\"") == std::string::npos;
    text += is_plain ? " " + argument : " '" + argument + "'";
  }
  return text;
}

// The ranks outlive what is thrown here: whoever catches it may have to end those of other
// processes.
int run_program(int argc, char** argv, StudyPlan& plan, std::unique_ptr<Ranks>& ranks) {
  ParsedCommandLine parsed = parse_command_line(argc, argv);
  if (!parsed.plan) return parsed.exit_code;
  plan = std::move(*parsed.plan);
  ranks = plan.transport == TransportKind::mpi ? make_mpi_ranks(plan) : make_thread_ranks(plan);
  plan.num_ranks = ranks->world_size();

  StudyRecord record;
  record.title = parsed.title;
  record.started_at = utc_now();
  record.command_line = command_line(argc, argv);
  record.git_commit = describe_commit();
  record.host = describe_host();
  record.versions =
      "gradsieve " GRADSIEVE_VERSION_TEXT ", libtorch " + torch_version() + ", g++ " __VERSION__;
  record.runs = Study(plan, *ranks).run_all();
  if (!ranks->has_first_rank()) return 0;
  write_run_folder(plan, record);
  print_table(std::cout, summarise(record.runs));
  std::cout << "\nReport: " << (plan.run_folder / "report.html").string() << std::endl;
  return 0;
}

}  // namespace
}  // namespace gradsieve::study

int main(int argc, char** argv) {
  using namespace gradsieve::study;
  pin_math_threads(argv);
  StudyPlan plan;
  std::unique_ptr<Ranks> ranks;
  int exit_code = 1;
  try {
    exit_code = run_program(argc, argv, plan, ranks);
  } catch (UsageError const& error) {
    std::fprintf(stderr, "gradsieve-study: %s\n", error.what());
    exit_code = 2;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gradsieve-study: %s\n", error.what());
  }
  if (exit_code != 0 && ranks) ranks->abort(exit_code);
  return exit_code;
}
