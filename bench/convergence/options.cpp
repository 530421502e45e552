// SPDX-License-Identifier: Apache-2.0
#include "bench/convergence/options.hpp"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>

#include <CLI/CLI.hpp>

#include "gradsieve/registry.hpp"

#include "bench/convergence/datasets.hpp"
#include "bindings/cli/plugin_option.hpp"

namespace gradsieve::study {
namespace {

constexpr char const* kTopkSpec = "topk(density=0.01) | int8 ; feedback=residual";

// What a model trains well with, where the command line does not say.
void set_defaults(TrainingPlan& training) {
  bool const is_transformer = training.model == ModelKind::transformer;
  training.optimizer = is_transformer ? OptimizerKind::adamw : OptimizerKind::sgd;
  training.batch_examples = is_transformer ? 16 : 64;
}

double default_learning_rate(ModelKind model, OptimizerKind optimizer) {
  if (optimizer == OptimizerKind::adamw) return model == ModelKind::transformer ? 2e-3 : 1e-3;
  return model == ModelKind::transformer ? 0.1 : 0.05;
}

// What CLI11 fills; kept apart from the plan because its defaults depend on one another.
struct Flags {
  std::vector<ModelKind> models;
  std::optional<OptimizerKind> optimizer;
  std::vector<std::string> specs;
  std::vector<double> densities;
  std::string seeds = "3";
  std::optional<double> epochs;
  std::optional<std::uint64_t> steps;
  std::optional<std::uint64_t> batch;
  std::optional<double> learning_rate;
  std::optional<double> weight_decay;
  double momentum = 0.9;
  std::uint64_t record_every = 10;
  std::uint64_t evaluate_every = 0;
  std::string limit;
  std::vector<std::uint64_t> gradient_steps = {10, 100, 300};
};

void add_shared_options(CLI::App& app, StudyPlan& plan, Flags& flags) {
  static std::map<std::string, TransportKind> const transports = {{"local", TransportKind::local},
                                                                  {"mpi", TransportKind::mpi}};
  app.add_option("--transport", plan.transport,
                 "local: ranks are threads; mpi: this is one rank under mpirun")
      ->transform(CLI::CheckedTransformer(transports))
      ->default_str("local");
  app.add_option("--ranks", plan.num_ranks, "rank threads; under mpirun its -np counts")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--data", plan.image_folder, "folder of the Fashion-MNIST files")
      ->capture_default_str();
  app.add_option("--text", plan.text_file,
                 "text of the language model, instead of the program `bible`");
  app.add_option("--limit", flags.limit,
                 "slow network: rate,latency of each rank's link, as in 1Gbit/s,50us");
  app.add_option("--timeout", plan.timeout_s, "seconds that a rank waits for another")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  app.add_option("--out", plan.run_folder, "run folder for config, metrics, summary and report");
}

void add_training_options(CLI::App& app, StudyPlan& plan, Flags& flags) {
  static std::map<std::string, ModelKind> const models = {
      {"mlp", ModelKind::mlp}, {"cnn", ModelKind::cnn}, {"transformer", ModelKind::transformer}};
  static std::map<std::string, OptimizerKind> const optimizers = {{"sgd", OptimizerKind::sgd},
                                                                  {"adamw", OptimizerKind::adamw}};
  app.add_option("--model", flags.models,
                 "mlp, cnn (images) or transformer (text); may be repeated")
      ->transform(CLI::CheckedTransformer(models))
      ->required();
  app.add_option("--optimizer", flags.optimizer,
                 "sgd (momentum) or adamw; default: sgd, adamw for the transformer")
      ->transform(CLI::CheckedTransformer(optimizers));
  gradsieve::cli::add_plugin_option(app);
  app.add_option("--spec", flags.specs,
                 "what gradients go through; may be repeated; default: none and 1 % top-k")
      ->take_all();
  app.add_option("--density", flags.densities,
                 "adds `topk(density=D) | int8 ; feedback=residual`; may be repeated")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--seeds", flags.seeds, "a count (3), or a list (4,7,9)")->capture_default_str();
  auto* const epochs =
      app.add_option("--epochs", flags.epochs, "passes over the training data; default 3")
          ->check(CLI::PositiveNumber);
  app.add_option("--steps", flags.steps, "steps, instead of epochs; 1000 for the transformer")
      ->check(CLI::PositiveNumber)
      ->excludes(epochs);
  app.add_option("--batch", flags.batch,
                 "examples a rank and step; default 64, 16 for the transformer")
      ->check(CLI::Range(1, 65536));
  app.add_option("--lr", flags.learning_rate, "first learning rate; it falls linearly to 0")
      ->check(CLI::PositiveNumber);
  app.add_option("--momentum", flags.momentum, "of sgd")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--weight-decay", flags.weight_decay, "default 0, 0.01 for adamw")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--every", flags.record_every, "steps between lines of metrics.jsonl")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--evaluate-every", flags.evaluate_every,
                 "steps between validations; default: ten a run");
  app.add_option("--bucket-bytes", plan.bucket_bytes, "gradients exchanged together; 64K, 25MB")
      ->transform(CLI::AsSizeValue(true))
      ->capture_default_str();
  auto* const dump =
      app.add_option("--dump-gradients", plan.gradient_folder,
                     "folder for local gradients as .npy files, of the first spec and seed");
  app.add_option("--dump-steps", flags.gradient_steps, "steps whose gradients are written")
      ->delimiter(',')
      ->needs(dump)
      ->capture_default_str();
}

TrainingPlan training_plan(ModelKind model, Flags const& flags) {
  TrainingPlan training;
  training.model = model;
  set_defaults(training);
  training.optimizer = flags.optimizer.value_or(training.optimizer);
  training.learning_rate =
      flags.learning_rate.value_or(default_learning_rate(model, training.optimizer));
  training.weight_decay =
      flags.weight_decay.value_or(training.optimizer == OptimizerKind::adamw ? 0.01 : 0.0);
  training.momentum = flags.momentum;
  training.batch_examples = flags.batch.value_or(training.batch_examples);
  training.num_epochs = flags.epochs.value_or(3.0);
  training.num_steps =
      flags.steps.value_or(model == ModelKind::transformer && !flags.epochs ? 1000 : 0);
  training.record_every_steps = flags.record_every;
  training.evaluate_every_steps = flags.evaluate_every;
  training.seeds = parse_seeds(flags.seeds);
  training.specs = flags.specs;
  for (double const density : flags.densities) {
    char text[32];
    auto const end = std::to_chars(text, text + sizeof(text), density).ptr;
    training.specs.push_back("topk(density=" + std::string(text, end) +
                             ") | int8 ; feedback=residual");
  }
  if (training.specs.empty()) training.specs = {"none", kTopkSpec};
  return training;
}

void check_specs(StudyPlan const& plan) {
  for (TrainingPlan const& training : plan.trainings) {
    for (std::string const& spec : training.specs) {
      try {
        static_cast<void>(make_chain(spec));
      } catch (Error const& error) {
        throw UsageError("--spec '" + spec + "': " + error.what());
      }
    }
  }
}

void finish_plan(StudyPlan& plan, Flags const& flags, bool is_demo) {
  if (is_demo) {
    plan.trainings = demo_plan(std::getenv("GRADSIEVE_DEMO_SHORT") != nullptr).trainings;
    if (plan.run_folder.empty()) plan.run_folder = "runs/demo";
  } else {
    for (ModelKind const model : flags.models)
      plan.trainings.push_back(training_plan(model, flags));
    if (plan.run_folder.empty())
      plan.run_folder = std::filesystem::path("runs") / name_of(flags.models.front());
    plan.gradient_steps = flags.gradient_steps;
  }
  LinkRequest const limit = parse_limit(flags.limit);
  plan.limit_bits_per_s = limit.bits_per_s;
  plan.limit_latency_us = limit.latency_us;
  check_specs(plan);
}

[[noreturn]] void reject_limit(std::string const& text) {
  throw UsageError("--limit '" + text +
                   "': expected rate,latency such as 1Gbit/s,50us or 10Gbit/s or 0,100us");
}

// A number and its unit; the factor of the unit multiplies the number.
double quantity(std::string const& text, std::map<std::string, double> const& units,
                std::string const& whole) {
  double value = 0.0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  auto const unit = units.find(std::string(end, text.data() + text.size()));
  if (error != std::errc() || unit == units.end() || !std::isfinite(value) || value < 0.0)
    reject_limit(whole);
  return value * unit->second;
}

}  // namespace

char const* name_of(ModelKind model) noexcept {
  return model == ModelKind::mlp ? "mlp" : model == ModelKind::cnn ? "cnn" : "transformer";
}

char const* name_of(OptimizerKind optimizer) noexcept {
  return optimizer == OptimizerKind::sgd ? "sgd" : "adamw";
}

std::vector<std::uint64_t> parse_seeds(std::string const& text) {
  std::vector<std::uint64_t> numbers;
  bool valid = !text.empty();
  char const* position = text.data();
  char const* const end = text.data() + text.size();
  while (valid && position != end) {
    std::uint64_t number = 0;
    auto const [next, error] = std::from_chars(position, end, number);
    valid = error == std::errc() && (next == end || *next == ',');
    position = next == end ? next : next + 1;
    numbers.push_back(number);
  }
  bool const is_count = text.find(',') == std::string::npos;
  constexpr std::uint64_t kMaxSeeds = 1000;
  if (!valid || (is_count && (numbers.front() == 0 || numbers.front() > kMaxSeeds))) {
    throw UsageError("--seeds '" + text +
                     "': expected a count from 1 to 1000 (3) or a list of seeds (4,7,9)");
  }
  if (!is_count) return numbers;
  std::vector<std::uint64_t> seeds;
  for (std::uint64_t seed = 1; seed <= numbers.front(); ++seed) seeds.push_back(seed);
  return seeds;
}

LinkRequest parse_limit(std::string const& text) {
  if (text.empty()) return {};
  std::size_t const comma = text.find(',');
  std::string const rate = text.substr(0, comma);
  LinkRequest limit;
  limit.bits_per_s = quantity(
      rate, {{"", 1.0}, {"bit/s", 1.0}, {"kbit/s", 1e3}, {"Mbit/s", 1e6}, {"Gbit/s", 1e9}}, text);
  if (comma != std::string::npos) {
    limit.latency_us =
        quantity(text.substr(comma + 1), {{"", 1.0}, {"us", 1.0}, {"ms", 1e3}, {"s", 1e6}}, text);
  }
  return limit;
}

StudyPlan demo_plan(bool is_short) {
  TrainingPlan mlp;
  mlp.model = ModelKind::mlp;
  set_defaults(mlp);
  mlp.learning_rate = default_learning_rate(mlp.model, mlp.optimizer);
  mlp.specs = {"none", kTopkSpec};
  mlp.seeds = is_short ? std::vector<std::uint64_t>{1} : std::vector<std::uint64_t>{1, 2, 3};
  mlp.num_epochs = is_short ? 1.0 : 3.0;

  TrainingPlan cnn = mlp;
  cnn.model = ModelKind::cnn;
  cnn.learning_rate = default_learning_rate(cnn.model, cnn.optimizer);
  cnn.seeds = {1};
  cnn.num_epochs = is_short ? 0.25 : 1.0;

  StudyPlan plan;
  plan.trainings = {mlp, cnn};
  return plan;
}

ParsedCommandLine parse_command_line(int argc, char const* const* argv) {
  CLI::App app(
      "Convergence study: trains real models on real data over several ranks with each spec, and "
      "writes a\n"
      "table, config.json, metrics.jsonl, summary.csv and report.html into a run folder.\n"
      "Exit codes: 0 ok, 1 wrong result (ranks differ, an exchange failed), 2 usage or missing "
      "data.",
      "gradsieve-study");
  app.require_subcommand(1);
  ParsedCommandLine parsed;
  StudyPlan plan;
  plan.image_folder = default_image_folder();
  Flags flags;
  auto* const train = app.add_subcommand("train", "Train a model with each spec and seed");
  auto* const demo = app.add_subcommand(
      "demo",
      "The study in short form: an MLP and a CNN on Fashion-MNIST, dense against 1 % top-k");
  add_training_options(*train, plan, flags);
  add_shared_options(*train, plan, flags);
  add_shared_options(*demo, plan, flags);
  demo->footer("With GRADSIEVE_DEMO_SHORT=1 in the environment: one seed, one epoch.");
  try {
    app.parse(argc, argv);
    finish_plan(plan, flags, demo->parsed());
  } catch (CLI::ParseError const& error) {
    parsed.exit_code = app.exit(error) == 0 ? 0 : 2;
    return parsed;
  } catch (UsageError const& error) {
    std::fprintf(stderr, "gradsieve-study: %s\n", error.what());
    parsed.exit_code = 2;
    return parsed;
  }
  parsed.title = demo->parsed() ? "Demo" : "Convergence study";
  parsed.plan = std::move(plan);
  return parsed;
}

}  // namespace gradsieve::study
