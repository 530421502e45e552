// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/gpu_results.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve::bench {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (char const c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

std::string numbered(double value) {
  if (!std::isfinite(value)) return "null";
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string joined(std::vector<std::string> const& items) {
  std::string text;
  for (std::string const& item : items) text += (text.empty() ? "\n  " : ",\n  ") + item;
  return "[" + text + "]";
}

double median_of(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::ranges::sort(values);
  std::size_t const half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string row_json(ResultRow const& row) {
  std::vector<std::string> samples;
  for (double const time : row.microseconds) samples.push_back(numbered(time));
  std::string list;
  for (std::string const& sample : samples) list += (list.empty() ? "" : ", ") + sample;
  return JsonObject()
      .text("row", row.name)
      .text("data", row.data)
      .text("bytes_formula", row.traffic.formula)
      .number("bytes_per_element", row.traffic.bytes_per_element)
      .number("median_us", median_of(row.microseconds))
      .number("back_to_back_us", row.back_to_back_us)
      .number("GBps", row.gigabytes_per_second)
      .number("percent_of_copy", row.percent_of_copy)
      .json("us", "[" + list + "]")
      .str();
}

}  // namespace

// --- JSON ----------------------------------------------------------------------------------------

JsonObject& JsonObject::json(std::string_view key, std::string_view value) {
  members_ += (members_.empty() ? "" : ", ") + quoted(key) + ": " + std::string(value);
  return *this;
}
JsonObject& JsonObject::text(std::string_view key, std::string_view value) {
  return json(key, quoted(value));
}
JsonObject& JsonObject::number(std::string_view key, double value) {
  return json(key, numbered(value));
}
JsonObject& JsonObject::count(std::string_view key, std::uint64_t value) {
  return json(key, std::to_string(value));
}
JsonObject& JsonObject::boolean(std::string_view key, bool value) {
  return json(key, value ? "true" : "false");
}

// --- results -------------------------------------------------------------------------------------

GpuResults::GpuResults(std::string folder) : folder_(std::move(folder)) {
  if (folder_.empty()) return;
  std::filesystem::create_directories(folder_);
  std::string const file = folder_ + "/gpu_bench.jsonl";
  lines_ = std::fopen(file.c_str(), "w");
  if (lines_ == nullptr) throw Error(Code::invalid_argument, "cannot write " + file);
}

GpuResults::~GpuResults() {
  if (lines_ != nullptr) std::fclose(lines_);
}

void GpuResults::line(JsonObject const& object) {
  if (lines_ == nullptr) return;
  std::fprintf(lines_, "%s\n", object.str().c_str());
  std::fflush(lines_);
}

void GpuResults::begin(JsonObject const& run) {
  run_ = run.str();
  line(JsonObject().json("run", run_));
}

void GpuResults::checked(std::string const& name, std::string const& data,
                         Equality const& equality) {
  ++num_checked_;
  num_repeats_ += equality.repeats;
  JsonObject object;
  object.text("check", name)
      .text("data", data)
      .boolean("holds", equality.holds())
      .boolean("equals_ref", equality.equals_ref)
      .count("repeats", equality.repeats)
      .count("differing_words", equality.differing_words);
  if (!equality.holds()) {
    ++num_wrong_;
    object.text("first_difference", equality.first_difference);
    std::printf("WRONG: %s, %s: %s%s\n", name.c_str(), data.c_str(),
                equality.equals_ref ? "the first run is right" : equality.first_difference.c_str(),
                equality.differing_words != 0 ? ", and differs from run to run" : "");
    std::fflush(stdout);  // whoever reads it through a pipe may stop this run
  }
  checks_.push_back(object.str());
  line(object);
}

void GpuResults::announced(GpuCase const& gpu_case) {
  line(JsonObject()
           .text("row", gpu_case.name())
           .text("bytes_formula", gpu_case.traffic.formula)
           .number("bytes_per_element", gpu_case.traffic.bytes_per_element));
}

void GpuResults::sampled(std::string const& name, std::string const& data, int round,
                         double microseconds) {
  line(JsonObject()
           .text("sample", name)
           .text("data", data)
           .count("round", static_cast<std::uint64_t>(round))
           .number("us", microseconds));
}

void GpuResults::measured(std::vector<ResultRow> rows, std::uint64_t num_elements) {
  double copy = std::nan("");
  for (ResultRow& row : rows) {
    double const bytes = row.traffic.bytes_per_element * static_cast<double>(num_elements);
    row.gigabytes_per_second = bytes / median_of(row.microseconds) * 1e-3;
    if (&row == &rows.front()) copy = row.gigabytes_per_second;
    row.percent_of_copy = 100 * row.gigabytes_per_second / copy;
    row_json_.push_back(row_json(row));
    rows_.push_back(std::move(row));
  }
}

std::string GpuResults::table() const {
  std::string text =
      "| call | data | median | least | most | back to back | bytes per element | GB/s | of copy "
      "|\n"
      "|---|---|---:|---:|---:|---:|---|---:|---:|\n";
  for (ResultRow const& row : rows_) {
    if (row.microseconds.empty()) {
      text += "| " + row.name + " | " + row.data + " | not reached in time | | | | | | |\n";
      continue;
    }
    auto const [least, most] = std::ranges::minmax(row.microseconds);
    char numbers[200];
    std::snprintf(
        numbers, sizeof numbers, "%.1f µs | %.1f | %.1f | %.1f | %s = %.2f | %.0f | %.0f %% |",
        median_of(row.microseconds), least, most, row.back_to_back_us, row.traffic.formula.c_str(),
        row.traffic.bytes_per_element, row.gigabytes_per_second, row.percent_of_copy);
    text += "| " + row.name + " | " + row.data + " | " + numbers + "\n";
  }
  if (num_checked_ != 0) {
    text += "\n" + std::to_string(num_checked_) + " calls checked, " +
            std::to_string(num_repeats_) + " runs of them: " + std::to_string(num_wrong_) +
            " wrong\n";
  }
  return text;
}

std::string GpuResults::document() const {
  return JsonObject()
             .json("run", run_.empty() ? "{}" : run_)
             .json("checks", joined(checks_))
             .json("rows", joined(row_json_))
             .str() +
         "\n";
}

void GpuResults::end() {
  std::string const text = table();
  std::printf("%s", text.c_str());
  if (folder_.empty()) return;
  std::ofstream(folder_ + "/gpu_bench.json") << document();
  std::ofstream(folder_ + "/gpu_bench.txt") << text;
}

}  // namespace gradsieve::bench
