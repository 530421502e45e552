// SPDX-License-Identifier: Apache-2.0
// CASES.md, HANG: collectives that do not fit together, two kinds of exchange in turn, several
// hooks in one process. (C-48 and C-49: hook_agreement_test and odd_rank_test. C-50: tools/faults.)
#include <algorithm>
#include <barrier>
#include <memory>

#include <gtest/gtest.h>

#include "gradsieve/exchange.hpp"

#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

// Three ranks reduce tensor A, one gathers the pairs of B: nobody waits longer than the deadline,
// and everybody is told whom and what for.
TEST(HangCases, C47OneRankInAnotherCollectiveIsAnErrorOnAll) {
  std::barrier all(4);
  test::run_ranks(4, [&](Transport& transport) {
    HookOptions options = options_for("none");
    options.exchange_deadline = std::chrono::seconds(3);  // ranks that are only slow are not named
    options.vote_deadline = std::chrono::seconds(6);
    Layout layout;
    layout.tensors = {{.name = "A", .num_elements = 600}};
    layout.buckets = {{{"A"}}};
    HookRank rank(transport, options, layout);
    for (std::uint64_t step = 0; step < 6; ++step) rank.step(step);

    auto const start = Clock::now();
    if (transport.rank() == 2) {
      std::vector<std::uint64_t> const indices = {3, 5};
      std::vector<float> const values = {1.0F, 2.0F};
      std::vector<SparseResult> per_rank;
      std::string sentence;
      Status const status = sparse_all_gather(
          transport, {.num_elements = 50, .indices = indices, .values = values}, per_rank,
          {.deadline = std::chrono::milliseconds(500), .tag = 77, .failure = &sentence});
      EXPECT_FALSE(status.ok());
      EXPECT_NE(sentence.find("rank"), std::string::npos) << sentence;
    } else {
      HookRank::Attempt const attempt = rank.attempt(6, heavy_tailed_of);
      EXPECT_FALSE(attempt.result.committed);
      Failure const failure = rank.hook().failure();
      EXPECT_EQ(failure.code, Code::timeout);
      EXPECT_EQ(failure.rank, 2);
      EXPECT_EQ(failure.tensor, "A");
      EXPECT_EQ(failure.field, "exchange");
    }
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(60)) << "a hang";
    all.arrive_and_wait();
  });
}

// On one transport, in turn: dense and sparse exchanges do not take each other's messages.
TEST(HangCases, C51DenseAndSparseInTurnAThousandTimes) {
  test::run_ranks(2, [](Transport& transport) {
    constexpr std::uint64_t kElements = 65'536;  // 256 KiB
    HookRank dense(transport, options_for("none"), one_bucket_each({kElements}));
    std::vector<float> gradient(kElements);
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = static_cast<float>(transport.rank() * 1000 + static_cast<int>(i % 100));
    std::vector<std::uint64_t> indices(300);
    std::vector<float> values(indices.size());
    for (std::uint32_t turn = 0; turn < 1000; ++turn) {
      ASSERT_TRUE(dense.hook().begin(turn).ok());
      std::ranges::copy(gradient, dense.bucket(0).begin());
      Event event;
      ASSERT_TRUE(dense.hook().reduce(0, TensorView(std::span(dense.bucket(0))), event).ok());
      ASSERT_TRUE(dense.hook().wait(event).ok());
      ASSERT_TRUE(dense.hook().finish().committed) << "turn " << turn;
      ASSERT_EQ(dense.bucket(0)[turn % kElements],
                500.0F + static_cast<float>(turn % kElements % 100));

      for (std::size_t i = 0; i < indices.size(); ++i) {
        indices[i] = i * 200 + turn % 100;
        values[i] = static_cast<float>(transport.rank() + 1);
      }
      SparseResult sum;
      ASSERT_TRUE(sparse_all_reduce(
                      transport, {.num_elements = kElements, .indices = indices, .values = values},
                      1.0F, sum, {.tag = 0x0d000000u + turn})
                      .ok());
      ASSERT_EQ(sum.indices, indices) << "turn " << turn;
      ASSERT_TRUE(std::ranges::all_of(sum.values, [](float x) { return x == 3.0F; }));
    }
  });
}

// Eight hooks, each with a transport of its own, in an order that is random and equal on all ranks;
// all of them are under way at the same time.
TEST(HangCases, C52EightHooksAtOnceFinishEveryStep) {
  constexpr std::size_t kHooks = 8;
  constexpr std::uint64_t kSteps = 125;  // of each: a thousand in all
  std::vector<std::unique_ptr<LocalGroup>> groups;
  for (std::size_t h = 0; h < kHooks; ++h) groups.push_back(std::make_unique<LocalGroup>(2));
  std::uint64_t sums[2] = {};
  test::run_ranks(2, [&](Transport& outer) {
    int const me = outer.rank();
    std::vector<std::unique_ptr<HookRank>> hooks;
    for (std::size_t h = 0; h < kHooks; ++h) {
      HookOptions options = options_for(h % 2 == 0 ? "topk(density=0.01) ; feedback=residual"
                                                   : "int8 ; exchange=two_shot");
      hooks.push_back(std::make_unique<HookRank>(groups[h]->transport(me), options,
                                                 one_bucket_each({256u << h})));
    }
    ShapeNoise const dice(52);
    std::uint64_t sum = 0;
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      std::vector<std::size_t> order(kHooks);
      for (std::size_t h = 0; h < kHooks; ++h) order[h] = h;
      std::ranges::sort(order, {}, [&](std::size_t h) { return dice.bits(step * kHooks + h)[0]; });
      std::vector<Event> events(kHooks);
      for (std::size_t const h : order) {
        ASSERT_TRUE(hooks[h]->hook().begin(step).ok());
        hooks[h]->fill(step, [&](int rank, std::uint64_t, std::string const&, std::uint64_t count) {
          std::vector<float> gradient(count);
          for (std::size_t i = 0; i < count; ++i)
            gradient[i] = static_cast<float>(
                              (i * 31 + step * 7 + h + 13 * static_cast<std::size_t>(rank)) % 97) -
                          48.0F;
          return gradient;
        });
        ASSERT_TRUE(
            hooks[h]->hook().reduce(0, TensorView(std::span(hooks[h]->bucket(0))), events[h]).ok());
      }
      for (std::size_t const h : order) {
        ASSERT_TRUE(hooks[h]->hook().wait(events[h]).ok());
        ASSERT_TRUE(hooks[h]->hook().finish().committed) << "hook " << h << ", step " << step;
        for (std::uint32_t const bits : bits_of(hooks[h]->all_results())) sum = mix64(sum ^ bits);
      }
    }
    sums[me] = sum;
  });
  EXPECT_EQ(sums[0], sums[1]) << "ranks hold different bits";
}

}  // namespace
}  // namespace gradsieve::testing
