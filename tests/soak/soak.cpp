// SPDX-License-Identifier: Apache-2.0
// Hours of training in short: four ranks, ever other specs, sizes, plans, rollbacks, failures and
// checkpoints; memory, descriptors and threads must not grow. tools/soak runs it.
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"

namespace {

using namespace gradsieve;
using namespace gradsieve::testing;
namespace fs = std::filesystem;

constexpr int kWorldSize = 4;
constexpr char const* kSpecs[] = {
    "topk(density=0.01) ; feedback=residual",
    "topk(density=0.02) | int8 | zstd ; feedback=residual",
    "int8 ; feedback=residual ; exchange=two_shot",
    "int4(rounding=stochastic) ; feedback=residual(dtype=bf16) ; exchange=gather",
    "randomk(density=0.05) ; feedback=residual",
    "cltk(density=0.05, hold=3) ; feedback=residual",
    "blocktopk(density=0.05) | sign ; feedback=residual ; scope=bucket",
    "threshold(value=2) ; feedback=residual",
    "sign ; feedback=residual(decay=0.9) ; exchange=two_shot",
    "none",
    "bf16 ; exchange=auto",
};

/// What the process holds at one moment.
struct Held {
  std::uint64_t resident_bytes = 0;
  std::uint64_t heap_bytes = 0;  ///< handed out and not given back
  std::uint64_t descriptors = 0;
  std::uint64_t threads = 0;

  void raise_to(Held const& other) {
    resident_bytes = std::max(resident_bytes, other.resident_bytes);
    heap_bytes = std::max(heap_bytes, other.heap_bytes);
    descriptors = std::max(descriptors, other.descriptors);
    threads = std::max(threads, other.threads);
  }
};

std::uint64_t entries_of(char const* folder) {
  return static_cast<std::uint64_t>(std::distance(fs::directory_iterator(folder), {}));
}

Held held_now() {
  ::malloc_trim(0);
  Held held;
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  held.resident_bytes = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  struct mallinfo2 const info = ::mallinfo2();
  held.heap_bytes = info.uordblks + info.hblkhd;
  held.descriptors = entries_of("/proc/self/fd");
  held.threads = entries_of("/proc/self/task");
  return held;
}

/// The same numbers on every rank: a function of the era alone.
class Dice {
 public:
  Dice(std::uint64_t era, std::uint64_t seed) : noise_(seed), next_(era << 20) {}
  std::uint64_t below(std::uint64_t bound) { return noise_.bits(next_++)[0] % bound; }

 private:
  ShapeNoise noise_;
  std::uint64_t next_;
};

/// Page faults of steps, counted without taking memory: fault counts from 64 on are one.
class FaultCounts {
 public:
  void add(long faults) { ++steps_with_[static_cast<std::size_t>(std::clamp(faults, 0L, 64L))]; }
  [[nodiscard]] std::size_t median() const {
    std::uint64_t total = 0;
    for (std::uint64_t const steps : steps_with_) total += steps;
    std::uint64_t seen = 0;
    std::size_t faults = 0;
    while (faults < 64 && (seen += steps_with_[faults]) * 2 < total) ++faults;
    return faults;
  }

 private:
  std::array<std::uint64_t, 65> steps_with_ = {};
};

long page_faults() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

/// What all ranks share.
struct Soak {
  explicit Soak(std::chrono::seconds d, std::uint64_t s)
      : duration(d),
        seed(s),
        folder(fs::temp_directory_path() / ("gsv_soak." + std::to_string(::getpid()))) {
    fs::create_directory(folder);
  }
  ~Soak() { fs::remove_all(folder); }
  Soak(Soak const&) = delete;
  Soak& operator=(Soak const&) = delete;

  std::chrono::seconds duration;
  std::uint64_t seed;
  fs::path folder;
  std::barrier<> all{kWorldSize};
  std::vector<std::uint64_t> hashes = std::vector<std::uint64_t>(kWorldSize);
  std::atomic<bool> over{false};
  std::uint64_t num_eras = 0;
  Held early;          ///< most after the warm-up, in the first half of what is left
  Held late;           ///< most in the second half
  FaultCounts faults;  ///< of four ranks in a step of the lasting hooks
  Clock::time_point start = Clock::now();
};

std::uint64_t hash_of(std::vector<float> const& values) {
  std::uint64_t hash = 1;
  for (std::uint32_t const bits : bits_of(values)) hash = mix64(hash ^ bits);
  return hash;
}

/// One step of whatever kind; throws if it does not end as it should, the same on all ranks.
void run_step(Soak& soak, HookRank& rank, std::uint64_t step, std::uint64_t kind) {
  auto const me = static_cast<std::size_t>(rank.rank());
  bool const has_nan = kind == 0;
  bool const is_short = kind == 1;
  bool const is_refused = kind == 2;
  float const loss_scale = kind == 3 ? 1024.0F : 1.0F;
  if (Status const status = rank.hook().begin(step, loss_scale); !status.ok())
    fail(rank.hook(), "begin", status);
  rank.fill(step, heavy_tailed_of, loss_scale);
  if (has_nan && me == step % kWorldSize)
    rank.bucket(0)[0] = std::numeric_limits<float>::quiet_NaN();
  std::vector<Event> events(rank.layout().buckets.size());
  for (std::uint32_t b = 0; b < events.size(); ++b) {
    std::span<float> bucket(rank.bucket(b));
    if (is_short && b == 0 && me == step % kWorldSize) bucket = bucket.first(bucket.size() - 1);
    static_cast<void>(rank.hook().reduce(b, TensorView(bucket), events[b]));
  }
  for (Event const& event : events) static_cast<void>(rank.hook().wait(event));
  StepResult const result = rank.hook().finish();
  if (result.committed == (has_nan || is_short)) fail(rank.hook(), "finish", result.status);
  if (is_refused) static_cast<void>(rank.hook().refuse());
  if (!result.committed) return;
  soak.hashes[me] = hash_of(rank.all_results());
  soak.all.arrive_and_wait();
  if (soak.hashes[me] != soak.hashes[0]) throw std::runtime_error("ranks hold different bits");
  soak.all.arrive_and_wait();
}

Layout random_layout(Dice& dice) {
  std::vector<std::uint64_t> sizes = {1 + dice.below(60'000)};
  for (std::uint64_t i = dice.below(4); i > 0; --i) sizes.push_back(dice.below(3'000));
  Layout const layout = one_bucket_each(sizes);
  return dice.below(2) == 0 ? layout : all_in_one(layout);
}

/// A model's life: some steps, perhaps another bucket layout, a checkpoint, and some more steps.
void run_era(Soak& soak, Transport& transport, std::uint64_t era) {
  Dice dice(era, soak.seed);
  HookOptions options = options_for(kSpecs[dice.below(std::size(kSpecs))]);
  options.rollback = dice.below(2) == 0 ? Rollback::merge : Rollback::exact;
  options.progress_thread = dice.below(4) != 0;
  options.num_threads = static_cast<int>(1 + dice.below(2));
  Layout layout = random_layout(dice);
  HookRank rank(transport, options, layout);
  std::uint64_t step = dice.below(1000);
  auto const some_steps = [&] {
    for (std::uint64_t i = 4 + dice.below(8); i > 0; --i)
      run_step(soak, rank, step++, dice.below(12));
  };
  some_steps();
  if (dice.below(3) == 0) {
    rank.plan(all_in_one(layout));
    some_steps();
  }
  if (dice.below(3) == 0) {
    std::string const path = (soak.folder / std::to_string(transport.rank())).string();
    rank.hook().export_state(path);
    std::string const paths[] = {path};
    HookRank resumed(transport, options, rank.layout());
    resumed.hook().import_state(paths);
    run_step(soak, resumed, step, 4);
  }
}

void keep_books(Soak& soak) {
  auto const elapsed = Clock::now() - soak.start;
  bool const warm = elapsed > soak.duration / 5;
  bool const second_half = elapsed > soak.duration * 3 / 5;
  if (warm) (second_half ? soak.late : soak.early).raise_to(held_now());
  ++soak.num_eras;
  soak.over = elapsed > soak.duration;
}

void live(Soak& soak, Transport& transport) {
  // A hook that lives as long as the program, beside those that come and go.
  HookRank lasting(transport, options_for(kSpecs[1]), one_bucket_each({5'000, 77}));
  std::uint64_t step = 0;
  for (std::uint64_t era = 0; !soak.over; ++era) {
    run_era(soak, transport, era);
    Dice dice(era, soak.seed + 1);
    for (int i = 0; i < 5; ++i) {
      soak.all.arrive_and_wait();
      long const before = page_faults();
      run_step(soak, lasting, step++, dice.below(12));
      soak.all.arrive_and_wait();
      if (transport.rank() == 0) soak.faults.add(page_faults() - before);
    }
    if (era % 7 == 3)
      lasting.plan(era % 2 == 0 ? one_bucket_each({5'000, 77})
                                : all_in_one(one_bucket_each({5'000, 77})));
    soak.all.arrive_and_wait();
    if (transport.rank() == 0) keep_books(soak);
    soak.all.arrive_and_wait();
  }
}

int judge(Soak const& soak) {
  auto const mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / 1048576.0; };
  std::printf(
      "soak: %lld s, %llu models, --seed %llu\n", static_cast<long long>(soak.duration.count()),
      static_cast<unsigned long long>(soak.num_eras), static_cast<unsigned long long>(soak.seed));
  std::printf("  %-12s %12s %12s\n", "most", "first half", "second half");
  std::printf("  %-12s %10.1f M %10.1f M\n", "resident", mib(soak.early.resident_bytes),
              mib(soak.late.resident_bytes));
  std::printf("  %-12s %10.3f M %10.3f M\n", "heap", mib(soak.early.heap_bytes),
              mib(soak.late.heap_bytes));
  std::printf("  %-12s %12llu %12llu\n", "descriptors",
              static_cast<unsigned long long>(soak.early.descriptors),
              static_cast<unsigned long long>(soak.late.descriptors));
  std::printf("  %-12s %12llu %12llu\n", "threads",
              static_cast<unsigned long long>(soak.early.threads),
              static_cast<unsigned long long>(soak.late.threads));
  std::printf("  %-12s %12zu, the median of all steps of the lasting hooks\n", "page faults",
              soak.faults.median());
  if (soak.early.threads == 0 || soak.late.threads == 0) {
    std::printf("soak: too short to compare two halves\n");
    return 1;
  }
  // Between two models only the lasting hooks are alive: what they hold does not depend on the time
  // but for the residuals' digits. Resident pages may be kept by the allocator.
  bool const grew = soak.late.heap_bytes > soak.early.heap_bytes + 65'536 ||
                    soak.late.resident_bytes > soak.early.resident_bytes / 20 * 21 + (4u << 20) ||
                    soak.late.descriptors > soak.early.descriptors ||
                    soak.late.threads > soak.early.threads;
  std::printf("soak: %s\n", grew ? "it GREW" : "nothing grew");
  return grew ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  long long seconds = 0;
  std::uint64_t seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string const name = argv[i];
    if (name == "--seconds") seconds = std::atoll(argv[i + 1]);
    if (name == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
  }
  if (seconds <= 0 || argc % 2 == 0) {
    std::fprintf(stderr, "usage: gsv_soak --seconds N [--seed N]\n");
    return 2;
  }
  try {
    Soak soak{std::chrono::seconds(seconds), seed};
    test::run_ranks(kWorldSize, [&](Transport& transport) {
      try {
        live(soak, transport);
      } catch (std::exception const& error) {
        std::fprintf(stderr, "soak: rank %d: %s\n", transport.rank(), error.what());
        std::_Exit(1);  // the others wait at a barrier
      }
    });
    return judge(soak);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "soak: %s\n", error.what());
    return 1;
  }
}
