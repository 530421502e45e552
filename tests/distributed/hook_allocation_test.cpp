// SPDX-License-Identifier: Apache-2.0
// Promise 7: nothing allocates in the steady step, on any thread of the library; and any size, any
// alignment, zero elements and world size 1 work.
#include <atomic>
#include <barrier>

#include <gtest/gtest.h>

#include "tests/support/counting_allocator.hpp"
#include "tests/support/hook_rank.hpp"
#include "tests/support/plugin_specs.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

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
void PrintTo(AllocationCase const& c, std::ostream* out) { *out << c.name; }

std::vector<AllocationCase> allocation_cases() {
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
  return cases;
}

class HookAllocation : public ::testing::TestWithParam<AllocationCase> {};

TEST_P(HookAllocation, TenStepsAfterTwentyAllocateNothing) {
  constexpr int kWorldSize = 4;
  CountingResource resource;
  std::barrier all(kWorldSize);
  std::uint64_t counted = 0;
  std::uint64_t resource_calls = 0;
  test::run_ranks(kWorldSize, [&](Transport& transport) {
    HookOptions options = options_for(GetParam().spec);
    options.rollback = GetParam().rollback;
    options.progress_thread = GetParam().progress_thread;
    options.memory = &resource;
    options.num_threads = 2;
    HookRank rank(transport, options, one_bucket_each({6000, 0, 129, 1}));
    std::vector<std::vector<float>> gradients;
    for (TensorDesc const& tensor : rank.layout().tensors) {
      gradients.push_back(heavy_tailed_of(transport.rank(), 0, tensor.name, tensor.num_elements));
    }
    std::vector<Event> events(gradients.size());
    bool all_committed = true;
    auto const run = [&](std::uint64_t step) {
      bool ok = rank.hook().begin(step).ok();
      for (std::uint32_t b = 0; b < gradients.size(); ++b) {
        std::ranges::copy(gradients[b], rank.bucket(b).begin());
        ok = rank.hook().reduce(b, TensorView(std::span<float>(rank.bucket(b))), events[b]).ok() &&
             ok;
      }
      for (Event const& event : events) ok = rank.hook().wait(event).ok() && ok;
      all_committed = rank.hook().finish().committed && ok && all_committed;
    };
    for (std::uint64_t step = 0; step < 20; ++step) run(step);

    all.arrive_and_wait();
    std::uint64_t const before = num_allocations();
    std::uint64_t const calls_before = resource.num_calls;
    all.arrive_and_wait();
    for (std::uint64_t step = 20; step < 30; ++step) run(step);
    all.arrive_and_wait();
    if (transport.rank() == 0) {
      counted = num_allocations() - before;
      resource_calls = resource.num_calls - calls_before;
    }
    all.arrive_and_wait();
    EXPECT_TRUE(all_committed);
  });

  EXPECT_EQ(counted, 0u) << "allocations of four ranks in ten steps";
  EXPECT_EQ(resource_calls, 0u);
  EXPECT_EQ(resource.num_live_bytes, 0u) << "what was taken was not given back";
}

INSTANTIATE_TEST_SUITE_P(Specs, HookAllocation, ::testing::ValuesIn(allocation_cases()),
                         [](auto const& c) { return c.param.name; });

TEST(HookMemory, ComesFromTheGivenResourceAndIsReported) {
  CountingResource resource;
  test::run_ranks(2, [&](Transport& transport) {
    HookOptions options = options_for("topk(density=0.01) ; feedback=residual");
    options.memory = &resource;
    HookRank rank(transport, options, one_bucket_each({100'000}));
    EXPECT_GE(rank.hook().state_bytes(), 100'000 * sizeof(float))
        << "a residual is as large as its tensor";
    EXPECT_LE(rank.hook().state_bytes(), 100'000 * sizeof(float) + 65536)
        << "one residual under merge";
    HookOptions exact = options;
    exact.rollback = Rollback::exact;
    HookRank other(transport, exact, one_bucket_each({100'000}));
    EXPECT_GE(other.hook().state_bytes(), 2 * 100'000 * sizeof(float))
        << "two residuals under exact";
  });
  EXPECT_GT(resource.num_calls, 0u);
}

// Sizes around every border, in one run; the definition is tested elsewhere, here nothing may
// break.
TEST(HookSizes, AnySizeAnyAlignmentAndAnyWorldSizeWork) {
  for (int const world_size : {1, 2, 5}) {
    for (char const* spec :
         {"topk(density=0.1) | int8 ; feedback=residual", "int8 ; exchange=two_shot", "none",
          "randomk(density=0.1) ; feedback=residual",
          "sign ; feedback=residual ; exchange=two_shot"}) {
      test::run_ranks(world_size, [&](Transport& transport) {
        std::vector<std::uint64_t> const sizes = {0,  1,  2,   3,   5,   7,   31,
                                                  32, 33, 255, 256, 257, 1025};
        Layout const layout = one_bucket_each(sizes);
        Hook hook(transport, options_for(spec));
        hook.plan(layout.tensors, layout.buckets);
        for (std::uint64_t step = 0; step < 6; ++step) {
          ASSERT_TRUE(hook.begin(step).ok());
          std::vector<std::vector<std::byte>> memory;
          std::vector<Event> events(sizes.size());
          for (std::size_t b = 0; b < sizes.size(); ++b) {
            // An odd address for floats: every element alignment is valid, so 4 bytes off 256 must
            // be.
            memory.emplace_back(sizes[b] * sizeof(float) + 512);
            auto const address = reinterpret_cast<std::uintptr_t>(memory[b].data());
            auto* const data = memory[b].data() + (256 - address % 256) + sizeof(float);
            std::vector<float> const gradient =
                heavy_tailed_of(transport.rank(), step, layout.tensors[b].name, sizes[b]);
            std::ranges::copy(std::as_bytes(std::span(gradient)), data);
            Status const status = hook.reduce(static_cast<std::uint32_t>(b),
                                              TensorView(data, sizes[b], DType::f32), events[b]);
            ASSERT_TRUE(status.ok()) << status.message();
          }
          for (Event const& event : events) ASSERT_TRUE(hook.wait(event).ok());
          ASSERT_TRUE(hook.finish().committed);
        }
      });
    }
  }
}

}  // namespace
}  // namespace gradsieve::testing
