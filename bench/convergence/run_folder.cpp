// SPDX-License-Identifier: Apache-2.0
#include "bench/convergence/run_folder.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <thread>

#include <nlohmann/json.hpp>
#include <sys/utsname.h>
#include <unistd.h>

#include "gradsieve/vocabulary.hpp"

#include "bench/convergence/report.hpp"

namespace gradsieve::study {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN; null says "not measured".
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::string hash_text(std::uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

// A spec may hold commas: fields of CSV are quoted, quotes are doubled.
std::string quoted(std::string const& field) {
  std::string text = "\"";
  for (char const c : field) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + '"';
}

Json training_json(TrainingPlan const& training) {
  return {{"model", name_of(training.model)},
          {"optimizer", name_of(training.optimizer)},
          {"specs", training.specs},
          {"seeds", training.seeds},
          {"epochs", training.num_epochs},
          {"steps", training.num_steps},
          {"batch_examples_per_rank", training.batch_examples},
          {"learning_rate", training.learning_rate},
          {"learning_rate_schedule", "linear to 0"},
          {"momentum", training.momentum},
          {"weight_decay", training.weight_decay},
          {"record_every_steps", training.record_every_steps},
          {"evaluate_every_steps", training.evaluate_every_steps}};
}

std::string first_line_of(char const* command) {
  std::array<char, 256> line{};
  std::FILE* const pipe = popen(command, "r");
  if (pipe == nullptr) return "";
  bool const read = std::fgets(line.data(), static_cast<int>(line.size()), pipe) != nullptr;
  bool const succeeded = pclose(pipe) == 0 && read;
  std::string text = succeeded ? line.data() : "";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

void write_file(std::filesystem::path const& path, std::string const& content) {
  std::filesystem::path temporary = path;
  temporary += ".tmp" + std::to_string(::getpid());
  std::ofstream file(temporary, std::ios::binary);
  file << content;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (file && !error) return;
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  throw Error(Code::io_error,
              "'" + path.string() + "' cannot be written; expected a folder with space left");
}

std::string config_json(StudyPlan const& plan, StudyRecord const& record) {
  Json trainings = Json::array();
  for (TrainingPlan const& training : plan.trainings) trainings.push_back(training_json(training));
  Json const config = {{"command_line", record.command_line},
                       {"started_at", record.started_at},
                       {"git_commit", record.git_commit},
                       {"host", record.host},
                       {"versions", record.versions},
                       {"transport", plan.transport == TransportKind::mpi ? "mpi" : "local"},
                       {"world_size", plan.num_ranks},
                       {"bucket_bytes", plan.bucket_bytes},
                       {"limit_bits_per_s", plan.limit_bits_per_s},
                       {"limit_latency_us", plan.limit_latency_us},
                       {"timeout_s", plan.timeout_s},
                       {"image_folder", plan.image_folder.string()},
                       {"text_file", plan.text_file.string()},
                       {"trainings", trainings},
                       {"notes", record.notes}};
  return config.dump(2) + '\n';
}

std::string metrics_jsonl(StudyRecord const& record) {
  std::string text;
  for (RunRecord const& run : record.runs) {
    for (MetricsRow const& row : run.rows) {
      Json const line = {{"model", run.model},
                         {"spec", run.spec},
                         {"seed", run.seed},
                         {"step", row.step},
                         {"epoch", row.epoch},
                         {"loss", number(row.loss)},
                         {"val_loss", number(row.validation_loss)},
                         {"acc", number(row.accuracy)},
                         {"wire_bytes", row.wire_bytes},
                         {"dense_bytes", row.dense_bytes},
                         {"t_encode", row.encode_s},
                         {"t_exchange", row.exchange_s},
                         {"t_decode", row.decode_s},
                         {"t_compute", row.compute_s},
                         {"t_wall", row.wall_s},
                         {"residual_norm", number(row.residual_norm)}};
      text += line.dump() + '\n';
    }
  }
  return text;
}

std::string summary_csv(StudyRecord const& record) {
  std::string text =
      "model,spec,seed,world_size,steps,train_loss,val_loss,accuracy,wire_bytes,dense_fp32_bytes,"
      "dense_bf16_bytes,"
      "encode_s,exchange_s,decode_s,parameter_hash\n";
  for (RunRecord const& run : record.runs) {
    char numbers[512];
    std::snprintf(
        numbers, sizeof(numbers), ",%llu,%d,%llu,%.6f,%.6f,%.6f,%llu,%llu,%llu,%.4f,%.4f,%.4f,",
        static_cast<unsigned long long>(run.seed), run.world_size,
        static_cast<unsigned long long>(run.num_steps), run.train_loss, run.validation_loss,
        run.accuracy, static_cast<unsigned long long>(run.wire_bytes),
        static_cast<unsigned long long>(run.dense_fp32_bytes),
        static_cast<unsigned long long>(run.dense_bf16_bytes), run.encode_s, run.exchange_s,
        run.decode_s);
    text += run.model + ',' + quoted(run.spec) + numbers + hash_text(run.parameter_hash) + '\n';
  }
  return text;
}

void write_run_folder(StudyPlan const& plan, StudyRecord const& record) {
  write_file(plan.run_folder / "config.json", config_json(plan, record));
  write_file(plan.run_folder / "metrics.jsonl", metrics_jsonl(record));
  write_file(plan.run_folder / "summary.csv", summary_csv(record));
  write_file(plan.run_folder / "report.html", report_html(record));
}

std::string describe_host() {
  utsname name{};
  uname(&name);
  std::string processor = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    std::size_t const colon = line.find(": ");
    if (!line.starts_with("model name") || colon == std::string::npos) continue;
    processor = line.substr(colon + 2);
    break;
  }
  return processor + ", " + std::to_string(std::thread::hardware_concurrency()) + " cores, " +
         name.sysname + " " + name.release;
}

std::string describe_commit() {
  std::string const git = "git -C '" GRADSIEVE_SOURCE_DIR "' ";
  std::string const commit = first_line_of((git + "rev-parse --short=12 HEAD 2>/dev/null").c_str());
  if (commit.empty()) return "";
  bool const changed = !first_line_of((git + "status --porcelain 2>/dev/null").c_str()).empty();
  return commit + (changed ? "+" : "");
}

std::string utc_now() {
  std::time_t const now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

}  // namespace gradsieve::study
