// SPDX-License-Identifier: Apache-2.0
// gradsieve-gpu-bench: every CUDA kernel beside a copy on the same device and in the same run.
// docs/benchmarking.md, "On a GPU", says how a row comes about.
#include <cstdio>
#include <exception>
#include <regex>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "bench/cuda/gpu_equality.hpp"
#include "bench/cuda/gpu_memory.hpp"
#include "bench/cuda/gpu_options.hpp"
#include "bench/cuda/gpu_results.hpp"
#include "bench/cuda/gpu_timing.hpp"

namespace gradsieve::bench {
namespace {

constexpr int kWrong = 1;
constexpr int kUsage = 2;
constexpr int kNoDevice = 77;

/// The copy and its control come first, whatever else is asked for.
std::vector<GpuCase> cases_of(GpuOptions const& options, std::uint64_t num_elements) {
  CaseList all = {.num_elements = num_elements, .dtypes = options.dtypes};
  add_copy_cases(all);
  std::size_t const num_copies = all.cases.size();
  add_streaming_cases(all);
  add_selection_cases(all);
  add_sparse_cases(all);
  add_index_cases(all);
  add_quantizer_cases(all);
  add_many_cases(all);
  add_many_sparse_cases(all);
  add_body_cases(all);
  add_cub_cases(all);
  if (options.plant_mistake) add_planted_case(all);
  std::regex const only(options.only);
  std::vector<GpuCase> wanted;
  for (std::size_t i = 0; i < all.cases.size(); ++i) {
    if (i < num_copies || std::regex_search(all.cases[i].name(), only)) {
      wanted.push_back(std::move(all.cases[i]));
    }
  }
  return wanted;
}

JsonObject describe(GpuOptions const& options) {
  int device = 0;
  cudaDeviceProp properties = {};
  int driver = 0;
  int runtime = 0;
  int memory_khz = 0;
  require_cuda(cudaGetDevice(&device), "asking for the device");
  require_cuda(cudaGetDeviceProperties(&properties, device), "asking for the device");
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  if (cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, device) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
  }
  JsonObject run;
  run.text("device", properties.name)
      .text("compute_capability",
            std::to_string(properties.major) + "." + std::to_string(properties.minor))
      .count("multiprocessors", static_cast<std::uint64_t>(properties.multiProcessorCount))
      .count("l2_bytes", static_cast<std::uint64_t>(properties.l2CacheSize))
      .count("memory_bytes", properties.totalGlobalMem)
      .count("memory_clock_khz", static_cast<std::uint64_t>(memory_khz))
      .count("driver", static_cast<std::uint64_t>(driver))
      .count("runtime", static_cast<std::uint64_t>(runtime))
      .count("elements", options.elements)
      .count("check_elements", options.check_elements)
      .count("repetitions", static_cast<std::uint64_t>(options.repetitions))
      .count("flush_bytes", options.flush_mib << 20);
  return run;
}

void check_all(GpuOptions const& options, GpuResults& results) {
  std::vector<GpuCase> const cases = cases_of(options, options.check_elements);
  for (GpuData const data : options.data) {
    GpuMemory memory(cases, data);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (!cases[i].has_ref) continue;
      results.checked(cases[i].name(), gpu_data_name(data),
                      check_equality(memory, cases[i], i, options.repeat_check, options.with_ref));
    }
  }
}

/// The calls of one distribution. Those whose time does not depend on it come with the first alone.
void time_data(GpuOptions const& options, std::vector<GpuCase> const& cases, GpuData data,
               Deadline const& deadline, GpuResults& results) {
  GpuMemory memory(cases, data);
  GpuTiming timing(memory, cases.size(), options.flush_mib << 20);
  timing.run(options.repetitions, deadline, [&](std::size_t i, int round, double microseconds) {
    results.sampled(cases[i].name(), gpu_data_name(data), round, microseconds);
  });
  std::vector<double> const back_to_back = timing.back_to_back(options.repetitions, deadline);
  std::vector<ResultRow> rows;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    rows.push_back({.name = cases[i].name(),
                    .data = gpu_data_name(data),
                    .traffic = cases[i].traffic,
                    .microseconds = timing.microseconds(i),
                    .back_to_back_us = back_to_back[i]});
  }
  results.measured(std::move(rows), options.elements);
}

void time_all(GpuOptions const& options, GpuResults& results) {
  std::vector<GpuCase> cases = cases_of(options, options.elements);
  for (GpuCase const& c : cases) results.announced(c);
  Deadline const all(options.budget_seconds);
  auto num_left = static_cast<double>(options.data.size());
  for (GpuData const data : options.data) {
    bool const is_limited = options.budget_seconds > 0;
    Deadline const own(is_limited ? std::max(1e-3, all.seconds_left() / num_left) : 0.0);
    time_data(options, cases, data, own, results);
    if (num_left == static_cast<double>(options.data.size())) {
      std::erase_if(cases, [](GpuCase const& c) { return !c.depends_on_data && c.has_ref; });
    }
    num_left -= 1;
  }
}

int run(GpuOptions const& options) {
  if (options.help) {
    std::printf("%s", kGpuUsage);
    return 0;
  }
  int num_devices = 0;
  cudaError_t const error = cudaGetDeviceCount(&num_devices);
  if (options.list) {
    for (GpuCase const& c : cases_of(options, options.elements)) {
      std::printf("%s: %s\n", c.name().c_str(), c.traffic.formula.c_str());
    }
    return 0;
  }
  if (error != cudaSuccess || num_devices == 0) {
    std::printf("gradsieve-gpu-bench: skipped: no CUDA device (%s)\n", cudaGetErrorString(error));
    return kNoDevice;
  }
  GpuResults results(options.out_folder);
  results.begin(describe(options));
  if (options.repeat_check != 0) check_all(options, results);
  if (options.repetitions != 0) time_all(options, results);
  results.end();
  return results.num_wrong() == 0 ? 0 : kWrong;
}

}  // namespace
}  // namespace gradsieve::bench

int main(int argc, char** argv) {
  try {
    return gradsieve::bench::run(
        gradsieve::bench::parse_gpu_options(std::vector<std::string>(argv + 1, argv + argc)));
  } catch (std::regex_error const&) {
    std::fprintf(stderr, "gradsieve-gpu-bench: --only is no regular expression\n");
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gradsieve-gpu-bench: %s\n", error.what());
  }
  return gradsieve::bench::kUsage;
}
