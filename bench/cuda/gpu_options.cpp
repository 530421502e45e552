// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/gpu_options.hpp"

#include <charconv>
#include <cstdlib>
#include <sstream>
#include <utility>

namespace gradsieve::bench {

char const* const kGpuUsage =
    "usage: gradsieve-gpu-bench [options]\n"
    "Times every CUDA kernel in per cent of a device-to-device copy of the same run.\n"
    "  --elements N        elements of a gradient (default 134217728 = 2^27)\n"
    "  --dtypes LIST       of f32,f16,bf16 (default f32)\n"
    "  --data LIST         of heavy,normal,ties,zeros (default all); calls whose time does not\n"
    "                      depend on it are timed with the first alone\n"
    "  --repetitions N     rounds, each in an order of its own (default 15); 0: time nothing\n"
    "  --repeat-check N    first run each call N times: the same bytes each time, and those of "
    "ref\n"
    "  --check-elements N  elements of that (default 70001)\n"
    "  --no-ref            compare only the repeats, for sizes that ref is too slow for\n"
    "  --only REGEX        only calls in whose name this is found; the copies are always there\n"
    "  --out FOLDER        gpu_bench.jsonl as it comes, gpu_bench.json and gpu_bench.txt at the "
    "end\n"
    "  --budget-seconds S  stop timing after this long (default 0: never)\n"
    "  --flush-mib N       read between two calls to empty the L2 (default 256)\n"
    "  --plant-mistake     add a call that is wrong, to see it found\n"
    "  --list              print the names of the calls\n"
    "exit status: 0 ok, 1 wrong result, 2 usage or error, 77 no device\n";

namespace {

[[noreturn]] void refuse(std::string const& option, std::string const& value,
                         std::string const& expected) {
  throw Error(Code::invalid_argument,
              option + " is '" + value + "'; expected " + expected + " (see --help)");
}

template <typename T>
T number(std::string const& option, std::string const& value, T least, T most) {
  T result = {};
  auto const [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc() || end != value.data() + value.size() || result < least ||
      result > most) {
    std::ostringstream expected;
    expected << "a number from " << least << " to " << most;
    refuse(option, value, expected.str());
  }
  return result;
}

template <typename T>
std::vector<T> chosen(std::string const& option, std::string const& value,
                      std::vector<std::pair<std::string, T>> const& known) {
  std::vector<T> found;
  std::string names;
  for (auto const& [name, _] : known) names += (names.empty() ? "" : ", ") + name;
  std::istringstream list(value);
  for (std::string item; std::getline(list, item, ',');) {
    std::size_t const before = found.size();
    for (auto const& [name, what] : known) {
      if (name == item) found.push_back(what);
    }
    if (found.size() == before) refuse(option, item, "some of " + names);
  }
  if (found.empty()) refuse(option, value, "some of " + names);
  return found;
}

bool set_flag(GpuOptions& options, std::string const& name) {
  if (name == "--list") {
    options.list = true;
  } else if (name == "--help") {
    options.help = true;
  } else if (name == "--no-ref") {
    options.with_ref = false;
  } else if (name == "--plant-mistake") {
    options.plant_mistake = true;
  } else {
    return false;
  }
  return true;
}

}  // namespace

GpuOptions parse_gpu_options(std::vector<std::string> const& arguments) {
  GpuOptions options;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 31;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string const& name = arguments[i];
    if (set_flag(options, name)) continue;
    if (i + 1 == arguments.size()) refuse(name, "", "a value behind it, or one of the options");
    std::string const& value = arguments[++i];
    if (name == "--elements") {
      options.elements = number<std::uint64_t>(name, value, 1024, kMost);
    } else if (name == "--check-elements") {
      options.check_elements = number<std::uint64_t>(name, value, 1024, kMost);
    } else if (name == "--repetitions") {
      options.repetitions = number<int>(name, value, 0, 10000);
    } else if (name == "--repeat-check") {
      options.repeat_check = number<std::uint64_t>(name, value, 0, 1000000);
    } else if (name == "--budget-seconds") {
      options.budget_seconds = number<double>(name, value, 0, 1e6);
    } else if (name == "--flush-mib") {
      options.flush_mib = number<std::uint64_t>(name, value, 1, 65536);
    } else if (name == "--only") {
      options.only = value;
    } else if (name == "--out") {
      options.out_folder = value;
    } else if (name == "--dtypes") {
      options.dtypes = chosen<DType>(
          name, value, {{"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}});
    } else if (name == "--data") {
      options.data = chosen<GpuData>(name, value,
                                     {{"heavy", GpuData::heavy},
                                      {"normal", GpuData::normal},
                                      {"ties", GpuData::ties},
                                      {"zeros", GpuData::zeros}});
    } else {
      refuse("the option", name, "one of those that --help lists");
    }
  }
  return options;
}

}  // namespace gradsieve::bench
