// SPDX-License-Identifier: Apache-2.0
// The command line of gradsieve-gpu-bench, read with the standard library alone: on the day a GPU
// is lent there may be nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/cuda/gpu_fill.hpp"

namespace gradsieve::bench {

struct GpuOptions {
  std::uint64_t elements = std::uint64_t{1} << 27;
  std::uint64_t check_elements = 70001;
  std::vector<DType> dtypes = {DType::f32};
  std::vector<GpuData> data = {GpuData::heavy, GpuData::normal, GpuData::ties, GpuData::zeros};
  std::string only;
  std::string out_folder;
  int repetitions = 15;
  std::uint64_t repeat_check = 0;
  double budget_seconds = 0;
  std::uint64_t flush_mib = 256;
  bool with_ref = true;
  bool plant_mistake = false;
  bool list = false;
  bool help = false;
};

extern char const* const kGpuUsage;

/// Throws Error(invalid_argument) with a sentence.
[[nodiscard]] GpuOptions parse_gpu_options(std::vector<std::string> const& arguments);

}  // namespace gradsieve::bench
