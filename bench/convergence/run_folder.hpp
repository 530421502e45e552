// SPDX-License-Identifier: Apache-2.0
// The files of a study: config.json, metrics.jsonl, summary.csv, report.html.
#pragma once

#include <filesystem>
#include <string>

#include "bench/convergence/study.hpp"

namespace gradsieve::study {

/// Writes a file whole or not at all: to a temporary name first. Throws Error(io_error).
void write_file(std::filesystem::path const& path, std::string const& content);

[[nodiscard]] std::string config_json(StudyPlan const& plan, StudyRecord const& record);
[[nodiscard]] std::string metrics_jsonl(StudyRecord const& record);
[[nodiscard]] std::string summary_csv(StudyRecord const& record);

/// Writes the four files into the folder of the plan.
void write_run_folder(StudyPlan const& plan, StudyRecord const& record);

/// Processor, cores, memory, kernel: one line.
[[nodiscard]] std::string describe_host();
/// The commit of the source tree, with "+" if it has changes; empty where there is none.
[[nodiscard]] std::string describe_commit();
[[nodiscard]] std::string utc_now();

}  // namespace gradsieve::study
