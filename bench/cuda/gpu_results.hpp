// SPDX-License-Identifier: Apache-2.0
// What was measured: a line of JSON for each number as it comes, one document and a table at the
// end. A run that is stopped leaves its lines.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/cuda/gpu_case.hpp"
#include "bench/cuda/gpu_equality.hpp"

namespace gradsieve::bench {

/// {"key": value, ...} in the order of the calls. Written out here, so that the program needs no
/// library on a machine that was lent with a compiler and nothing else.
class JsonObject {
 public:
  JsonObject& text(std::string_view key, std::string_view value);
  JsonObject& number(std::string_view key, double value);
  JsonObject& count(std::string_view key, std::uint64_t value);
  JsonObject& boolean(std::string_view key, bool value);
  /// `value` is JSON already.
  JsonObject& json(std::string_view key, std::string_view value);
  [[nodiscard]] std::string str() const { return "{" + members_ + "}"; }

 private:
  std::string members_;
};

/// One line of the table.
struct ResultRow {
  std::string name;
  std::string data;
  Traffic traffic;
  std::vector<double> microseconds;
  double back_to_back_us = 0;
  double gigabytes_per_second = 0;
  double percent_of_copy = 0;
};

class GpuResults {
 public:
  /// Empty folder: prints the table and writes nothing.
  explicit GpuResults(std::string folder);
  ~GpuResults();
  GpuResults(GpuResults const&) = delete;
  GpuResults& operator=(GpuResults const&) = delete;

  void begin(JsonObject const& run);
  void checked(std::string const& name, std::string const& data, Equality const& equality);
  void sampled(std::string const& name, std::string const& data, int round, double microseconds);
  /// A row's name and traffic, before its samples.
  void announced(GpuCase const& gpu_case);
  /// The rows of one distribution; the first is the copy, the second its control.
  void measured(std::vector<ResultRow> rows, std::uint64_t num_elements);
  /// Writes gpu_bench.json and table.txt, and prints the table.
  void end();

  [[nodiscard]] std::uint64_t num_wrong() const { return num_wrong_; }

 private:
  void line(JsonObject const& object);
  [[nodiscard]] std::string table() const;
  [[nodiscard]] std::string document() const;

  std::string folder_;
  std::FILE* lines_ = nullptr;
  std::string run_;
  std::vector<std::string> checks_;
  std::vector<ResultRow> rows_;
  std::vector<std::string> row_json_;
  std::uint64_t num_checked_ = 0;
  std::uint64_t num_wrong_ = 0;
  std::uint64_t num_repeats_ = 0;
};

}  // namespace gradsieve::bench
