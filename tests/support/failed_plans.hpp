// SPDX-License-Identifier: Apache-2.0
// Plans that one rank has no memory for: all ranks keep the plan before, and go on with it.
#pragma once

#include <atomic>
#include <string>

#include <gtest/gtest.h>

#include "gradsieve/memory.hpp"

#include "tests/support/hook_rank.hpp"

namespace gradsieve::testing {

/// Another resource, until it is told to fail.
class FailingMemory final : public MemoryResource {
 public:
  explicit FailingMemory(MemoryResource& inner) : inner_(inner) {}

  /// So many calls go well; the next one throws, and those behind it go well again.
  void fail_after(int num_calls) { left_ = num_calls; }
  void never_fail() { left_ = -1; }

  void* allocate(std::size_t num_bytes, Stream stream) override {
    if (left_ >= 0 && left_-- == 0) throw Error(Code::out_of_memory, "this block is one too many");
    return inner_.allocate(num_bytes, stream);
  }
  void deallocate(void* pointer, std::size_t num_bytes, Stream stream) noexcept override {
    inner_.deallocate(pointer, num_bytes, stream);
  }
  [[nodiscard]] Device device() const noexcept override { return inner_.device(); }

 private:
  MemoryResource& inner_;
  std::atomic<int> left_ = -1;
};

/// `rank` plans `next`, and rank 0's memory fails at every call of that plan in turn. In between
/// both take steps like `twin`, which is a hook on the host that does not plan again. Rank is
/// HookRank or CudaHookRank. `every`: leaves out calls.
template <typename Rank>
void check_failed_plans(Rank& rank, FailingMemory& memory, HookRank& twin, Layout const& next,
                        int every) {
  std::uint64_t step = 0;
  auto const expect_same_step = [&] {
    EXPECT_TRUE(twin.attempt(step, heavy_tailed_of).result.committed);
    auto const attempt = rank.attempt(step, heavy_tailed_of);
    EXPECT_TRUE(attempt.begun.ok()) << attempt.begun.message();
    EXPECT_TRUE(attempt.result.committed) << attempt.result.status.message();
    ++step;
  };
  expect_same_step();
  int num_failures = 0;
  for (int call = 0;; call += every) {
    if (rank.rank() == 0) memory.fail_after(call);
    try {
      rank.plan(next);
      break;
    } catch (Error const& error) {
      ++num_failures;
      EXPECT_EQ(error.code(), rank.rank() == 0 ? Code::out_of_memory : Code::peer_failed)
          << error.what();
      if (rank.rank() != 0) {
        EXPECT_EQ(rank.hook().failure().rank, 0);
      }
    }
    memory.never_fail();
    expect_same_step();
    EXPECT_EQ(bits_of(rank.all_results()), bits_of(twin.all_results())) << call;
  }
  memory.never_fail();
  EXPECT_GE(num_failures * every, 5);
  for (TensorDesc const& tensor : next.tensors) {
    EXPECT_EQ(bits_of(rank.hook().residual(tensor.name)),
              bits_of(twin.hook().residual(tensor.name)))
        << tensor.name;
  }
  expect_same_step();
  EXPECT_EQ(bits_of(rank.all_results()), bits_of(twin.all_results()));
}

}  // namespace gradsieve::testing
