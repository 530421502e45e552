// SPDX-License-Identifier: Apache-2.0
// Promise 7, counted: what a hook allocates in ten steps after twenty, over any transport.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/counting_allocator.hpp"
#include "tests/support/hook_rank.hpp"
#include "tests/support/plugin_specs.hpp"

namespace gradsieve::testing {

/// Counts what the library asks its memory resource for.
class CountingResource final : public MemoryResource {
 public:
  void* allocate(std::size_t num_bytes, Stream stream) override {
    ++num_calls;
    num_live_bytes += num_bytes;
    return host_memory().allocate(num_bytes, stream);
  }
  void deallocate(void* pointer, std::size_t num_bytes, Stream stream) noexcept override {
    num_live_bytes -= num_bytes;
    host_memory().deallocate(pointer, num_bytes, stream);
  }
  std::atomic<std::uint64_t> num_calls{0};
  std::atomic<std::uint64_t> num_live_bytes{0};
};

struct AllocationCase {
  std::string name;
  std::string spec;
  Rollback rollback = Rollback::merge;
  bool progress_thread = true;
};
inline void PrintTo(AllocationCase const& c, std::ostream* out) { *out << c.name; }

[[nodiscard]] inline std::vector<AllocationCase> allocation_cases() {
  std::vector<AllocationCase> cases;
  for (SpecCase const& spec_case : default_specs()) {
    cases.push_back({spec_case.name, spec_case.spec + " ; feedback=residual"});
  }
  cases.push_back({"topk_exact", "topk ; feedback=residual", Rollback::exact});
  cases.push_back(
      {"topk_without_progress_thread", "topk ; feedback=residual", Rollback::merge, false});
  cases.push_back({"topk_without_feedback", "topk"});
  cases.push_back({"topk_bf16_residual", "topk ; feedback=residual(dtype=bf16)"});
  cases.push_back({"int8_gather", "int8 ; exchange=gather"});
  cases.push_back(
      {"int8_two_shot_exact", "int8 ; feedback=residual ; exchange=two_shot", Rollback::exact});
  return cases;
}

struct SteadyCounts {
  std::uint64_t allocations = 0;      ///< whoever asked
  std::uint64_t cxx_allocations = 0;  ///< by operator new: ours, where the transport's library is C
  std::uint64_t resource_calls = 0;
  bool all_committed = true;
};

/// `wait_for_all` keeps the ranks of a process together while they count.
[[nodiscard]] inline SteadyCounts count_steady_steps(Transport& transport,
                                                     AllocationCase const& allocation,
                                                     CountingResource& resource,
                                                     std::function<void()> const& wait_for_all) {
  HookOptions options = options_for(allocation.spec);
  options.rollback = allocation.rollback;
  options.progress_thread = allocation.progress_thread;
  options.memory = &resource;
  options.num_threads = 2;
  HookRank rank(transport, options, one_bucket_each({6000, 0, 129, 1}));
  std::vector<std::vector<float>> gradients;
  for (TensorDesc const& tensor : rank.layout().tensors)
    gradients.push_back(heavy_tailed_of(transport.rank(), 0, tensor.name, tensor.num_elements));
  std::vector<Event> events(gradients.size());
  SteadyCounts counts;
  auto const run = [&](std::uint64_t step) {
    bool ok = rank.hook().begin(step).ok();
    for (std::uint32_t b = 0; b < gradients.size(); ++b) {
      std::ranges::copy(gradients[b], rank.bucket(b).begin());
      ok =
          rank.hook().reduce(b, TensorView(std::span<float>(rank.bucket(b))), events[b]).ok() && ok;
    }
    for (Event const& event : events) ok = rank.hook().wait(event).ok() && ok;
    counts.all_committed = rank.hook().finish().committed && ok && counts.all_committed;
  };
  for (std::uint64_t step = 0; step < 20; ++step) run(step);

  wait_for_all();
  std::uint64_t const before = num_allocations();
  std::uint64_t const cxx_before = num_cxx_allocations();
  std::uint64_t const calls_before = resource.num_calls;
  wait_for_all();
  for (std::uint64_t step = 20; step < 30; ++step) run(step);
  wait_for_all();
  counts.allocations = num_allocations() - before;
  counts.cxx_allocations = num_cxx_allocations() - cxx_before;
  counts.resource_calls = resource.num_calls - calls_before;
  wait_for_all();
  return counts;
}

}  // namespace gradsieve::testing
