// SPDX-License-Identifier: Apache-2.0
// gradsieve-comm: the hook against size, spec and link speed, always beside dense. Letters and size
// suffixes are those of nccl-tests.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/comm/comm_table.hpp"
#include "bench/comm/measure.hpp"
#include "bindings/cli/plugin_option.hpp"

#ifdef GRADSIEVE_WITH_MPI
#include <mpi.h>

#include "gradsieve/mpi.hpp"
#endif

namespace gradsieve::bench {
namespace {

struct Options {
  std::uint64_t min_bytes = 1 << 20;
  std::uint64_t max_bytes = 16 << 20;
  std::uint64_t bucket_bytes = 0;  ///< 0: the whole gradient
  std::uint64_t step_bytes = 0;    ///< 0: sizes grow by a factor
  double step_factor = 4.0;
  int iterations = 20;
  int warmup_iterations = 5;
  int check = 1;
  std::string dtype = "f32";
  std::string op = "avg";
  std::vector<std::string> specs;
  bool alone = false;
  std::string transport = "local";
  int ranks = 4;
  std::string limit;
  std::string json;
  std::string csv;
  std::uint64_t seed = 1;
  std::string command;
};

/// "1gbit,50us" → a link; "" → no limit.
LinkLimit parse_limit(std::string const& text) {
  LinkLimit limit;
  if (text.empty()) return limit;
  std::size_t const comma = text.find(',');
  std::string const rate = text.substr(0, comma);
  std::size_t used = 0;
  try {
    limit.bits_per_second = std::stod(rate, &used);
    std::string const unit = rate.substr(used);
    double const factor = unit == "gbit" ? 1e9 : unit == "mbit" ? 1e6 : unit == "kbit" ? 1e3 : 0.0;
    if (factor == 0.0 || !(limit.bits_per_second > 0.0)) throw std::invalid_argument(unit);
    limit.bits_per_second *= factor;
    if (comma != std::string::npos) {
      std::string const latency = text.substr(comma + 1);
      double const value = std::stod(latency, &used);
      std::string const time_unit = latency.substr(used);
      double const scale = time_unit == "us" ? 1e3 : time_unit == "ms" ? 1e6 : 0.0;
      if (scale == 0.0 || !(value >= 0.0)) throw std::invalid_argument(time_unit);
      limit.latency = std::chrono::nanoseconds(static_cast<std::int64_t>(value * scale));
    }
  } catch (std::exception const&) {
    throw Error(Code::invalid_argument,
                "--limit '" + text + "': expected rate,latency such as 1gbit,50us or 100mbit");
  }
  return limit;
}

DType parse_dtype(std::string const& text) {
  for (DType const dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    if (dtype_name(dtype) == text) return dtype;
  }
  throw Error(Code::invalid_argument, "-d '" + text + "': expected f32, f16, bf16 or f64");
}

double next_size(Options const& options, double bytes) {
  return options.step_bytes > 0 ? bytes + static_cast<double>(options.step_bytes)
                                : bytes * options.step_factor;
}

/// All sizes and specs on one rank; rank 0 prints. Returns the number of wrong results.
std::uint64_t run_rank(Options const& options, Transport& bare) {
  LinkLimit const limit = parse_limit(options.limit);
  std::unique_ptr<Transport> limited;
  if (!options.limit.empty()) limited = make_limited(bare, limit);
  Transport& transport = limited ? *limited : bare;
  bool const speaks = transport.rank() == 0;
  int const world_size = transport.world_size();
  DType const dtype = parse_dtype(options.dtype);

  // Dense fp32 is the first row of each size, whatever the gradients' type; f64 has a dense of its
  // own.
  struct Line {
    std::string spec;
    DType dtype;
  };
  std::vector<Line> lines;
  if (!options.alone) {
    lines.push_back({"none", dtype == DType::f64 ? DType::f64 : DType::f32});
    if (dtype != lines[0].dtype) lines.push_back({"none", dtype});
    if (dtype != DType::f64) lines.push_back({"bf16", dtype});
    if (transport.traits().has_dense_all_reduce && !limited)
      lines.push_back({kLibraryDense, dtype});
  }
  for (std::string const& spec : options.specs) lines.push_back({spec, dtype});

  if (speaks) print_header(world_size);
  std::vector<Row> rows;
  std::uint64_t num_wrong = 0;
  for (double bytes = static_cast<double>(options.min_bytes);
       bytes <= static_cast<double>(options.max_bytes); bytes = next_size(options, bytes)) {
    std::size_t const first = rows.size();
    for (Line const& line : lines) {
      Row row =
          measure(transport, {.spec = line.spec,
                              .num_elements = static_cast<std::uint64_t>(bytes) / size_of(dtype),
                              .bucket_elements = options.bucket_bytes / size_of(dtype),
                              .dtype = line.dtype,
                              .op = options.op == "sum" ? ReduceOp::sum : ReduceOp::mean,
                              .iterations = options.iterations,
                              .warmup_iterations = options.warmup_iterations,
                              .seed = options.seed,
                              .check = options.check != 0});
      Row const& dense = rows.size() == first ? row : rows[first];
      if (world_size > 1 && row.supported && !options.alone) {
        row.ratio = row.wire_bytes > 0.0 ? dense.wire_bytes / row.wire_bytes : 0.0;
        row.vs_dense = dense.total_us / row.total_us;
      }
      if (speaks) print_row(row, world_size);
      num_wrong += row.num_wrong.value_or(0);
      rows.push_back(std::move(row));
    }
  }
  std::uint64_t const sent_bytes = sum_over_ranks(transport, transport.counters().bytes_sent);
  if (speaks && !options.json.empty())
    write_json(options.json, rows, world_size, options.command, sent_bytes);
  if (speaks && !options.csv.empty()) write_csv(options.csv, rows, world_size);
  return num_wrong;
}

std::uint64_t run_threads(Options const& options) {
  LocalGroup group(options.ranks);
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(options.ranks));
  std::vector<std::uint64_t> wrong(static_cast<std::size_t>(options.ranks), 0);
  for (int rank = 0; rank < options.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::size_t const r = static_cast<std::size_t>(rank);
      try {
        wrong[r] = run_rank(options, group.transport(rank));
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::exception_ptr const& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return wrong[0];
}

std::uint64_t run_mpi([[maybe_unused]] Options const& options) {
#ifdef GRADSIEVE_WITH_MPI
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  std::uint64_t wrong = 0;
  {
    auto const transport = make_mpi_transport(MPI_COMM_WORLD);
    wrong = run_rank(options, *transport);
  }
  MPI_Finalize();
  return wrong;
#else
  throw Error(Code::not_built, "this build has no MPI; Debian's package is libopenmpi-dev");
#endif
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app{"gradsieve-comm: exchanges against size, spec and link speed, beside dense"};
  app.add_option("-b,--minbytes", options.min_bytes, "smallest gradient")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("-e,--maxbytes", options.max_bytes, "largest gradient")
      ->transform(CLI::AsSizeValue(false));
  auto* const step_bytes =
      app.add_option("-i,--stepbytes", options.step_bytes, "bytes between sizes")
          ->transform(CLI::AsSizeValue(false))
          ->check(CLI::PositiveNumber);
  app.add_option("-f,--stepfactor", options.step_factor, "factor between sizes")
      ->check(CLI::Range(1.1, 1e9))
      ->excludes(step_bytes);
  app.add_option("--bucket-bytes", options.bucket_bytes,
                 "buckets that a gradient is handed over in, as trainers do; default: one")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{8}, std::uint64_t{1} << 50));
  app.add_option("-n,--iters", options.iterations, "measured steps")->check(CLI::Range(1, 1000000));
  app.add_option("-w,--warmup_iters", options.warmup_iterations, "steps before")
      ->check(CLI::Range(0, 1000000));
  app.add_option("-c,--check", options.check, "compare ranks and the true mean (0 or 1)");
  app.add_option("-d,--datatype", options.dtype, "f32, f16, bf16 or f64");
  app.add_option("-o,--op", options.op, "avg or sum")->check(CLI::IsMember({"avg", "sum"}));
  gradsieve::cli::add_plugin_option(app);
  auto* const specs =
      app.add_option("--spec", options.specs, "a spec string; may be repeated")->take_all();
  app.add_flag("--alone", options.alone, "only the specs, with nothing to compare them with")
      ->needs(specs);
  app.add_option("--transport", options.transport, "local (threads) or mpi")
      ->check(CLI::IsMember({"local", "mpi"}));
  app.add_option("--ranks", options.ranks, "rank threads of the local transport")
      ->check(CLI::Range(1, 256));
  app.add_option("--limit", options.limit, "a slow link: rate,latency such as 1gbit,50us");
  app.add_option("--seed", options.seed, "of gradients and rounding");
  app.add_option("-F,--output_file,--json", options.json, "write rows as JSON to this file");
  app.add_option("--csv", options.csv, "write rows as CSV to this file");
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  for (int i = 0; i < argc; ++i) options.command += (i > 0 ? " " : "") + std::string(argv[i]);
  try {
    parse_limit(options.limit);
    for (std::string const& spec : options.specs) static_cast<void>(make_chain(spec));
    std::uint64_t const wrong =
        options.transport == "mpi" ? run_mpi(options) : run_threads(options);
    if (wrong > 0) std::fprintf(stderr, "gradsieve-comm: ranks hold different results\n");
    return wrong > 0 ? 1 : 0;
  } catch (Error const& error) {
    std::fprintf(stderr, "gradsieve-comm: %s\n", error.what());
    bool const usage = error.code() == Code::invalid_argument ||
                       error.code() == Code::unknown_name || error.code() == Code::not_built ||
                       error.code() == Code::not_implemented;
    return usage ? 2 : 1;
  }
}

}  // namespace
}  // namespace gradsieve::bench

int main(int argc, char** argv) { return gradsieve::bench::run(argc, argv); }
