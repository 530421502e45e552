// SPDX-License-Identifier: Apache-2.0
// The ranges that a profiler of NVIDIA's sees of a step. A program of its own: NVTX looks for its
// profiler once.
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tests/distributed/cuda/nvtx/nvtx_listener.hpp"
#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

/// Before anything of the library has a range.
bool const kIsListening = ::setenv("NVTX_INJECTION64_PATH", GSV_NVTX_LISTENER, 1) == 0;

std::vector<NvtxRange> take_ranges() {
  void* const listener = ::dlopen(GSV_NVTX_LISTENER, RTLD_NOW | RTLD_NOLOAD);
  if (listener == nullptr) return {};  // NVTX has not loaded it
  auto* const take = reinterpret_cast<TakeNvtxRanges*>(::dlsym(listener, "gsv_take_nvtx_ranges"));
  std::vector<NvtxRange> ranges;
  take(ranges);
  ::dlclose(listener);
  return ranges;
}

TEST(Nvtx, AStepHasARangeForEachPartOfEachBucket) {
  ASSERT_TRUE(kIsListening);
  constexpr int kRanks = 2;
  constexpr std::uint64_t kSteps = 6;
  test::run_ranks(kRanks, [](Transport& transport) {
    HookRank rank(transport, options_for("topk(density=0.1) | int8 ; feedback=residual"),
                  one_bucket_each({700, 40, 3}));
    for (std::uint64_t step = 0; step < kSteps; ++step) rank.step(step);
  });

  std::map<std::pair<std::string, std::uint64_t>, std::uint64_t> counts;
  for (NvtxRange const& range : take_ranges()) {
    EXPECT_EQ(range.domain, "gradsieve");
    EXPECT_TRUE(range.has_ended) << range.name;
    ++counts[{range.name, range.payload}];
  }
  for (std::uint64_t bucket = 0; bucket < 3; ++bucket) {
    EXPECT_EQ((counts[{"encode", bucket}]), kRanks * kSteps) << bucket;
    EXPECT_EQ((counts[{"exchange", bucket}]), kRanks * kSteps) << bucket;
    EXPECT_GE((counts[{"decode", bucket}]), kRanks * kSteps) << bucket;
  }
  EXPECT_EQ((counts[{"vote", 3}]), kRanks * kSteps);
}

}  // namespace
}  // namespace gradsieve::testing
