// SPDX-License-Identifier: Apache-2.0
// Promise 7: nothing allocates in the steady step, on any thread of the library; and any size, any
// alignment, zero elements and world size 1 work.
#include <barrier>

#include <gtest/gtest.h>

#include "tests/support/rank_runner.hpp"
#include "tests/support/steady_allocations.hpp"

namespace gradsieve::testing {
namespace {

class HookAllocation : public ::testing::TestWithParam<AllocationCase> {};

TEST_P(HookAllocation, TenStepsAfterTwentyAllocateNothing) {
  constexpr int kWorldSize = 4;
  CountingResource resource;
  std::barrier all(kWorldSize);
  SteadyCounts first;
  test::run_ranks(kWorldSize, [&](Transport& transport) {
    SteadyCounts const counts =
        count_steady_steps(transport, GetParam(), resource, [&] { all.arrive_and_wait(); });
    EXPECT_TRUE(counts.all_committed);
    if (transport.rank() == 0) first = counts;
  });

  EXPECT_EQ(first.allocations, 0u) << "allocations of four ranks in ten steps";
  EXPECT_EQ(first.resource_calls, 0u);
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
