// SPDX-License-Identifier: Apache-2.0
// gradsieve-bench: codecs in units of `update` (r += g on the same buffers), the memory traffic
// that error feedback cannot avoid. Names: op/spec/distribution/n:…/threads:…
//   --n N (repeatable) and --threads T choose sizes; everything else is Google Benchmark's.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/micro/codec_bench.hpp"

namespace gradsieve::bench {
namespace {

constexpr char const* kSpecs[] = {
    "topk(density=0.001) ; feedback=residual",
    "topk(density=0.01) ; feedback=residual",
    "topk(density=0.1) ; feedback=residual",
    "topk(density=0.01) | int8 ; feedback=residual",
    "threshold(value=3) ; feedback=residual",
    "randomk(density=0.01) ; feedback=residual",
    "blocktopk(density=0.01, block=256) ; feedback=residual",
    "cltk(density=0.01) ; feedback=residual",
    "int8(rounding=stochastic) ; feedback=residual",
    "int4(rounding=stochastic) ; feedback=residual",
    "sign ; feedback=residual",
    "bf16 ; feedback=residual",
    "none",
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Work and yardstick in turn, so that a slow moment of the machine meets both.
void run(benchmark::State& state, CodecCase const& which, bool decode) {
  CodecBench bench(which);
  bench.encode();
  std::vector<double> ratios;
  double total = 0.0;
  for ([[maybe_unused]] auto _ : state) {
    bool const first = ratios.size() % 2 == 0;
    double const before = first ? bench.update() : 0.0;
    double const own = decode ? bench.decode() : bench.encode();
    double const yardstick = first ? before : bench.update();
    ratios.push_back(own / yardstick);
    total += own;
    state.SetIterationTime(own);
  }
  double const bytes =
      4.0 * static_cast<double>(which.num_elements) * static_cast<double>(ratios.size());
  state.counters["x_update"] = median(ratios);
  state.counters["GBps"] = bytes / total * 1e-9;
  state.counters["bits_per_element"] = bench.bits_per_element();
}

std::string short_name(std::string const& spec) {
  std::string name;
  for (char const c : spec) {
    if (c != ' ') name += c;
  }
  return name.substr(0, name.find(';'));
}

void add(CodecCase const& which) {
  for (bool const decode : {false, true}) {
    std::string const name = std::string(decode ? "decode/" : "encode/") + short_name(which.spec) +
                             "/" + distribution_name(which.distribution) +
                             "/n:" + std::to_string(which.num_elements) +
                             "/threads:" + std::to_string(which.num_threads);
    benchmark::RegisterBenchmark(name.c_str(), [which, decode](benchmark::State& state) {
      run(state, which, decode);
    })->UseManualTime();
  }
}

}  // namespace
}  // namespace gradsieve::bench

int main(int argc, char** argv) {
  using namespace gradsieve::bench;
  std::vector<std::uint64_t> sizes;
  int num_threads = 1;
  std::vector<char*> rest{argv[0]};
  for (int i = 1; i < argc; ++i) {
    bool const has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--n") == 0 && has_value) {
      sizes.push_back(std::strtoull(argv[++i], nullptr, 10));
    } else if (std::strcmp(argv[i], "--threads") == 0 && has_value) {
      num_threads = std::max(1, std::atoi(argv[++i]));
    } else {
      rest.push_back(argv[i]);
    }
  }
  if (sizes.empty()) sizes = {std::uint64_t{1} << 20, std::uint64_t{1} << 24};
  for (std::uint64_t const n : sizes) {
    for (char const* const spec : kSpecs) {
      for (Distribution const d :
           {Distribution::heavy, Distribution::gauss, Distribution::ties, Distribution::rows}) {
        if (n > 0) add({spec, d, n, num_threads});
      }
    }
  }
  int count = static_cast<int>(rest.size());
  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 2;
  std::fprintf(stderr, "SIMD target: %s\n",
               std::string(gradsieve::simd_target_name(gradsieve::simd_target())).c_str());
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
