// SPDX-License-Identifier: Apache-2.0
#include "bench/micro/watch_bench.hpp"

#include <cstdlib>
#include <memory>

#include <benchmark/benchmark.h>

#include "comm/observer.hpp"
#include "comm/stopwatch.hpp"
#include "core/log.hpp"

namespace gradsieve::bench {
namespace {

void stopwatch(benchmark::State& state) {
  Spent spent;
  for ([[maybe_unused]] auto _ : state) {
    Stopwatch const watch(spent);
    benchmark::DoNotOptimize(spent);
  }
}

/// What `variable` asks for, written to nowhere.
std::unique_ptr<Observer> observer_of(char const* variable) {
  ::setenv(variable, "/dev/null", 1);
  std::unique_ptr<Observer> observer = Observer::from_environment(0);
  ::unsetenv(variable);
  return observer;
}

/// `variable`: null for ranges that nobody asked for.
void range(benchmark::State& state, char const* variable) {
  std::unique_ptr<Observer> const observer = variable == nullptr ? nullptr : observer_of(variable);
  for ([[maybe_unused]] auto _ : state) {
    TraceRange range(observer.get(), "encode", 1);
    range.set_bytes(1000);
  }
}

void step(benchmark::State& state, char const* variable) {
  std::unique_ptr<Observer> const observer = observer_of(variable);
  StepRecord record;
  for ([[maybe_unused]] auto _ : state) {
    ++record.step;
    observer->step(record);
  }
}

void line(benchmark::State& state) {
  unsigned long long number = 0;
  for ([[maybe_unused]] auto _ : state) {
    if (log_enabled(LogLevel::trace, "COMM"))
      log(LogLevel::trace, "COMM", "step %llu committed", ++number);
  }
}

}  // namespace

void add_watch_rows() {
  benchmark::RegisterBenchmark("watch/stopwatch", stopwatch);
  benchmark::RegisterBenchmark("watch/range/off", range, nullptr);
  benchmark::RegisterBenchmark("watch/range/timeline", range, "GRADSIEVE_TIMELINE");
  benchmark::RegisterBenchmark("watch/step/timeline", step, "GRADSIEVE_TIMELINE");
  benchmark::RegisterBenchmark("watch/step/metrics", step, "GRADSIEVE_METRICS");
  benchmark::RegisterBenchmark("watch/line", line);
}

}  // namespace gradsieve::bench
