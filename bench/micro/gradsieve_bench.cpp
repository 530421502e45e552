// SPDX-License-Identifier: Apache-2.0
// gradsieve-bench: codecs in units of `update` (r += g on the same buffers), the memory traffic
// that error feedback cannot avoid. Names: op/spec/distribution/n:…/threads:…; options that are not
// listed by --help are Google Benchmark's. docs/benchmarking.md says how to read the counters.
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "bench/micro/codec_bench.hpp"
#include "bench/micro/index_bench.hpp"
#include "bench/micro/peers.hpp"
#include "bench/micro/watch_bench.hpp"
#include "bindings/cli/plugin_option.hpp"

namespace gradsieve::bench {
namespace {

constexpr char const* kDefaultSpecs[] = {
    "topk(density=0.001) ; feedback=residual",
    "topk(density=0.01) ; feedback=residual",
    "topk(density=0.1) ; feedback=residual",
    "topk(density=0.01) | int8 ; feedback=residual",
    "threshold(value=3) ; feedback=residual",
    "randomk(density=0.01) ; feedback=residual",
    "blocktopk(density=0.01, block=256) ; feedback=residual",
    "cltk(density=0.01) ; feedback=residual",
    "int8(rounding=nearest) ; feedback=residual",
    "int8(rounding=stochastic) ; feedback=residual",
    "int4(rounding=stochastic) ; feedback=residual",
    "sign ; feedback=residual",
    "bf16 ; feedback=residual",
    "none",
};

struct Options {
  std::vector<std::uint64_t> sizes = {std::uint64_t{1} << 20, std::uint64_t{1} << 24};
  std::vector<int> threads = {1};
  std::vector<std::string> specs{std::begin(kDefaultSpecs), std::end(kDefaultSpecs)};
  std::string trace_folder;
  int rounds = 0;
  bool with_peers = true;
};

int rounds_of(Options const& options, std::uint64_t num_elements) {
  if (options.rounds > 0) return options.rounds;
  return num_elements >= (std::uint64_t{1} << 22) ? 21 : 101;
}

Timing timing_of(int num_threads) { return num_threads == 1 ? Timing::thread_cpu : Timing::wall; }

void count(benchmark::State& state, char const* name, Interval interval) {
  state.counters[name] = interval.median;
  state.counters[std::string(name) + "_low"] = interval.low;
  state.counters[std::string(name) + "_high"] = interval.high;
}

double faults_so_far() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_minflt + usage.ru_majflt);
}

/// Yardstick, its control and the work, round by round; the iteration's time is the work's.
void run_rounds(benchmark::State& state, PairedRounds& rounds, std::uint64_t num_bytes) {
  double total = 0.0;
  std::vector<double> faults;
  for ([[maybe_unused]] auto _ : state) {
    double const before = faults_so_far();
    rounds.round();
    faults.push_back(faults_so_far() - before);
    state.SetIterationTime(rounds.seconds(2).back());
    total += rounds.seconds(2).back();
  }
  count(state, "x_update", rounds.ratio(2));
  state.counters["a_a"] = rounds.ratio(1).median;
  state.counters["page_faults"] = interval_of(std::move(faults)).median;
  state.counters["GBps"] =
      static_cast<double>(num_bytes) * static_cast<double>(rounds.seconds(2).size()) / total * 1e-9;
}

void run_codec(benchmark::State& state, CodecCase const& which, Operation operation,
               Options const& options) {
  CodecBench bench(which, options.trace_folder);
  PairedRounds rounds(timing_of(which.num_threads),
                      {bench.update(), bench.update(), bench.work(operation)});
  run_rounds(state, rounds, 4 * which.num_elements);
  state.counters["bits_per_element"] = bench.bits_per_element();
}

void run_peer(benchmark::State& state, PeerKind const& kind, CodecCase const& which,
              Options const& options) {
  CodecBench bench(which, options.trace_folder);
  std::vector<float> const gradient =
      make_distribution(which.distribution, which.num_elements, 1, options.trace_folder);
  std::vector<float> const residual =
      make_distribution(which.distribution, which.num_elements, 2, options.trace_folder);
  std::unique_ptr<Peer> const peer = kind.make(gradient, residual);
  peer->restore();
  peer->run();
  PairedRounds rounds(
      Timing::thread_cpu,
      {bench.update(), bench.update(), {[&] { peer->restore(); }, [&] { peer->run(); }}});
  run_rounds(state, rounds, 4 * which.num_elements);
}

void run_index(benchmark::State& state, bool decode, std::uint64_t universe, double density) {
  IndexBench bench(universe, density);
  PairedRounds rounds(Timing::thread_cpu,
                      {bench.copy(), bench.copy(), decode ? bench.decode() : bench.encode()});
  double total = 0.0;
  for ([[maybe_unused]] auto _ : state) {
    rounds.round();
    state.SetIterationTime(rounds.seconds(2).back());
    total += rounds.seconds(2).back();
  }
  count(state, "x_memcpy", rounds.ratio(2));
  state.counters["a_a"] = rounds.ratio(1).median;
  state.counters["M_per_s"] = static_cast<double>(bench.num_indices()) *
                              static_cast<double>(rounds.seconds(2).size()) / total * 1e-6;
  state.counters["bits_per_index"] = bench.bits_per_index();
  state.counters["entropy_ratio"] = bench.entropy_ratio();
}

void run_select(benchmark::State& state, CodecCase const& which, double density,
                Options const& options) {
  CodecBench bench(which, options.trace_folder);
  bench.plan_select(density);
  PairedRounds rounds(timing_of(which.num_threads),
                      {bench.update(), bench.update(), bench.work(Operation::select)});
  run_rounds(state, rounds, 4 * which.num_elements);
}

std::string short_name(std::string const& spec) {
  std::string name;
  for (char const c : spec) {
    if (c != ' ') name += c;
  }
  return name.substr(0, name.find(';'));
}

std::string row_name(std::string const& operation, std::string const& what,
                     std::string const& distribution, std::uint64_t n, int num_threads) {
  return operation + "/" + what + "/" + distribution + "/n:" + std::to_string(n) +
         "/threads:" + std::to_string(num_threads);
}

std::string numbered(char const* format, double number) {
  char text[64];
  std::snprintf(text, sizeof text, format, number);
  return text;
}

template <typename Run>
void add(std::string const& name, int rounds, Run run) {
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->UseManualTime()
      ->Iterations(rounds)
      ->Unit(benchmark::kMicrosecond);
}

void add_all(Options const& options) {
  std::vector<Distribution> distributions = {Distribution::heavy, Distribution::gauss,
                                             Distribution::ties,  Distribution::sorted,
                                             Distribution::zeros, Distribution::rows};
  if (!options.trace_folder.empty()) distributions.push_back(Distribution::recorded);
  std::vector<PeerKind> peers = library_peers();
  for (PeerKind& peer : torch_peers()) peers.push_back(std::move(peer));
  for (std::uint64_t const n : options.sizes) {
    int const rounds = rounds_of(options, n);
    for (Distribution const distribution : distributions) {
      for (std::string const& spec : options.specs) {
        for (int const threads : options.threads) {
          CodecCase const which = {spec, distribution, n, threads};
          for (Operation const operation :
               {Operation::encode, Operation::encode_exact, Operation::decode}) {
            add(row_name(operation_name(operation), short_name(spec),
                         distribution_name(distribution), n, threads),
                rounds, [which, operation, options](benchmark::State& state) {
                  run_codec(state, which, operation, options);
                });
          }
        }
      }
      for (double const density : {0.001, 0.01, 0.1}) {
        for (int const threads : options.threads) {
          CodecCase const which = {"none", distribution, n, threads};
          add(row_name("select", numbered("topk(density=%g)", density),
                       distribution_name(distribution), n, threads),
              rounds, [which, density, options](benchmark::State& state) {
                run_select(state, which, density, options);
              });
        }
      }
      if (!options.with_peers || distribution > Distribution::ties) continue;
      for (PeerKind const& peer : peers) {
        CodecCase const which = {"none", distribution, n, 1};
        add(row_name("peer", peer.name, distribution_name(distribution), n, 1),
            std::min(rounds, 11), [peer, which, options](benchmark::State& state) {
              run_peer(state, peer, which, options);
            });
      }
    }
    for (double const density : {0.001, 0.01, 0.1}) {
      for (bool const decode : {false, true}) {
        add(row_name(decode ? "index_decode" : "index_encode",
                     numbered("elias_fano(density=%g)", density), "uniform", n, 1),
            rounds, [=](benchmark::State& state) { run_index(state, decode, n, density); });
      }
    }
  }
}

}  // namespace
}  // namespace gradsieve::bench

int main(int argc, char** argv) {
  gradsieve::bench::Options options;
  CLI::App app(
      "Codecs and kernels in units of r += g on the same buffers. Further options are "
      "Google Benchmark's (--benchmark_filter, --benchmark_out, ...).");
  app.allow_extras();
  app.add_option("--n", options.sizes, "elements; may be repeated")->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "threads; may be repeated")
      ->check(CLI::Range(1, 256));
  gradsieve::cli::add_plugin_option(app);
  app.add_option("--spec", options.specs, "spec strings in place of the default list");
  app.add_option("--trace", options.trace_folder,
                 "folder of gradients recorded by gradsieve-study --dump-gradients")
      ->check(CLI::ExistingDirectory);
  app.add_option("--rounds", options.rounds, "rounds a row (default: 21, or 101 below 2^22)")
      ->check(CLI::Range(1, 100000));
  app.add_flag("!--no-peers", options.with_peers, "leave out what others offer");
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  std::vector<std::string> extras = app.remaining();
  std::vector<char*> rest = {argv[0]};
  for (std::string& extra : extras) rest.push_back(extra.data());
  int count = static_cast<int>(rest.size());
  std::string command;
  for (int i = 0; i < argc; ++i)
    command += (i == 0 ? "gradsieve-bench" : std::string(" ") + argv[i]);

  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 2;
  benchmark::AddCustomContext("simd_target",
                              std::string(gradsieve::simd_target_name(gradsieve::simd_target())));
  benchmark::AddCustomContext("torch", gradsieve::bench::torch_version());
  benchmark::AddCustomContext("command", command);
  try {
    gradsieve::bench::add_all(options);
    gradsieve::bench::add_watch_rows();
    benchmark::RunSpecifiedBenchmarks();
  } catch (std::exception const& error) {
    std::cerr << "gradsieve-bench: " << error.what() << '\n';
    return 2;
  }
  return 0;
}
