// SPDX-License-Identifier: Apache-2.0
// State in memory and in files, and other rules in mid-training.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "gradsieve/hook.hpp"

#include "tests/bindings/c_client.h"
#include "tests/bindings/c_ranks.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

constexpr char const* kSpec = "topk(density=0.05) | int8 ; feedback=residual";
constexpr std::uint64_t kElements = 777;

std::vector<float> gradient_of(int rank, std::uint64_t step) {
  std::vector<float> gradient(kElements);
  for (std::uint64_t i = 0; i < kElements; ++i) gradient[i] = client_gradient(rank, step, 0, i);
  return gradient;
}

/// Steps [first, last); returns what the last one gave.
std::vector<float> train(gsvHook_t hook, int rank, std::uint64_t first, std::uint64_t last) {
  std::vector<float> gradient;
  for (std::uint64_t step = first; step < last; ++step) {
    gradient = gradient_of(rank, step);
    gsvStepResult_t outcome = GSV_INIT(gsvStepResult_t);
    EXPECT_GSV(step_one(hook, step, gradient, outcome));
    EXPECT_EQ(outcome.committed, 1U);
  }
  return gradient;
}

std::vector<std::byte> save(gsvHook_t hook) {
  std::uint64_t num_bytes = 0;
  EXPECT_GSV(gsvHookSaveState(hook, nullptr, 0, &num_bytes));
  std::vector<std::byte> state(num_bytes);
  EXPECT_EQ(gsvHookSaveState(hook, state.data(), num_bytes - 1, &num_bytes), gsvCapacityExceeded);
  EXPECT_GSV(gsvHookSaveState(hook, state.data(), num_bytes, &num_bytes));
  return state;
}

gsvResult_t load(gsvHook_t hook, std::vector<std::vector<std::byte>> const& states,
                 gsvOnWorldChange_t on_world_change = gsvWorldChangeError) {
  std::vector<void const*> starts;
  std::vector<std::uint64_t> sizes;
  for (auto const& state : states) {
    starts.push_back(state.data());
    sizes.push_back(state.size());
  }
  return gsvHookLoadState(hook, starts.data(), sizes.data(),
                          static_cast<std::uint32_t>(states.size()), on_world_change);
}

std::vector<float> residual_of(gsvHook_t hook) {
  std::vector<float> residual(kElements);
  EXPECT_GSV(gsvHookGetResidual(hook, "w", residual.data(), kElements));
  return residual;
}

/// body(hook, rank) with a planned hook per rank.
void with_hooks(int world_size, char const* spec, std::function<void(gsvHook_t, int)> const& body) {
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(world_size);
  for_each_rank(world_size, [&](int rank) {
    HookPtr const hook =
        make_hook(comms[static_cast<std::size_t>(rank)].get(), context.get(), spec);
    ASSERT_GSV(plan_one(hook.get(), kElements));
    body(hook.get(), rank);
  });
}

TEST(CStateTest, StopAndResumeInMemoryEqualsUninterrupted) {
  std::vector<std::vector<float>> expected(2);
  std::vector<std::vector<std::byte>> states(2);
  with_hooks(2, kSpec, [&](gsvHook_t hook, int rank) {
    train(hook, rank, 0, 4);
    states[static_cast<std::size_t>(rank)] = save(hook);
    expected[static_cast<std::size_t>(rank)] = train(hook, rank, 4, 8);
  });

  with_hooks(2, kSpec, [&](gsvHook_t hook, int rank) {
    ASSERT_GSV(load(hook, {states[static_cast<std::size_t>(rank)]}));
    EXPECT_EQ(train(hook, rank, 4, 8), expected[static_cast<std::size_t>(rank)]);
  });
}

TEST(CStateTest, AFileHoldsTheSameBytes) {
  with_hooks(1, kSpec, [&](gsvHook_t hook, int rank) {
    train(hook, rank, 0, 3);
    std::string const path = ::testing::TempDir() + "c_state_test.state";
    ASSERT_GSV(gsvHookExportState(hook, path.c_str()));
    std::ifstream file(path, std::ios::binary);
    std::string const content{std::istreambuf_iterator<char>(file), {}};
    std::vector<std::byte> const state = save(hook);
    std::vector<float> const residual = residual_of(hook);
    train(hook, rank, 3, 4);
    char const* const paths[] = {path.c_str()};
    ASSERT_GSV(gsvHookImportState(hook, paths, 1, gsvWorldChangeError));
    std::remove(path.c_str());

    EXPECT_EQ(content, std::string(reinterpret_cast<char const*>(state.data()), state.size()));
    EXPECT_EQ(residual_of(hook), residual);
  });
}

TEST(CStateTest, AnotherWorldSizeConservesTheSumOfResiduals) {
  std::vector<double> before(kElements, 0.0);
  std::vector<std::vector<std::byte>> states(3);
  std::mutex mutex;
  with_hooks(3, kSpec, [&](gsvHook_t hook, int rank) {
    train(hook, rank, 0, 6);
    states[static_cast<std::size_t>(rank)] = save(hook);
    std::vector<float> const residual = residual_of(hook);
    std::lock_guard const lock(mutex);
    for (std::size_t i = 0; i < kElements; ++i) before[i] += static_cast<double>(residual[i]);
  });
  std::vector<double> after(kElements, 0.0);
  with_hooks(2, kSpec, [&](gsvHook_t hook, int rank) {
    EXPECT_EQ(load(hook, {states[static_cast<std::size_t>(rank)]}), gsvMismatch);
    EXPECT_EQ(load(hook, {states[0], states[1]}, gsvWorldChangeRedistribute), gsvInvalidArgument);
    ASSERT_GSV(load(hook, states, gsvWorldChangeRedistribute));
    std::vector<float> const residual = residual_of(hook);
    std::lock_guard const lock(mutex);
    for (std::size_t i = 0; i < kElements; ++i) after[i] += static_cast<double>(residual[i]);
  });

  // Two residuals are added in double and rounded once to f32.
  for (std::size_t i = 0; i < kElements; ++i)
    EXPECT_NEAR(after[i], before[i], 1e-6 * (1.0 + std::abs(before[i]))) << i;
}

TEST(CStateTest, EveryDamagedByteIsFound) {
  with_hooks(1, kSpec, [&](gsvHook_t hook, int rank) {
    train(hook, rank, 0, 2);
    std::vector<std::byte> const state = save(hook);
    for (std::size_t i = 0; i < state.size(); i += 13) {
      std::vector<std::byte> damaged = state;
      damaged[i] ^= std::byte{0x10};
      ASSERT_EQ(load(hook, {damaged}), gsvCorruptPayload) << "byte " << i;
      ASSERT_EQ(load(hook, {{state.begin(), state.begin() + static_cast<std::ptrdiff_t>(i)}}),
                gsvCorruptPayload)
          << "cut at " << i;
    }
    EXPECT_GSV(load(hook, {state}));
  });
}

// --- other rules ---------------------------------------------------------------------------------

gsvResult_t set_rule(gsvHook_t hook, char const* spec) {
  gsvRule_t rule = GSV_INIT(gsvRule_t);
  rule.spec = spec;
  return gsvHookSetRules(hook, &rule, 1);
}

std::string spec_that_ran(gsvHook_t hook) {
  gsvStats_t stats = GSV_INIT(gsvStats_t);
  std::uint32_t count = 0;
  EXPECT_GSV(gsvHookGetStats(hook, gsvStatsOfTensors, &stats, 1, &count));
  EXPECT_EQ(count, 1U);
  return stats.spec;
}

TEST(CSetRulesTest, OtherRulesKeepTheResidualAndSendWithTheNewSpec) {
  with_hooks(2, kSpec, [&](gsvHook_t hook, int rank) {
    train(hook, rank, 0, 5);
    std::vector<float> const residual = residual_of(hook);

    ASSERT_GSV(set_rule(hook, "int8 ; feedback=residual"));

    EXPECT_EQ(residual_of(hook), residual);
    train(hook, rank, 5, 7);
    EXPECT_EQ(spec_that_ran(hook).find("int8"), 0U) << spec_that_ran(hook);
  });
}

// Turned off, the hook keeps what it still owes, and pays it back once it is on again.
TEST(CSetRulesTest, ADensePhaseLosesNothing) {
  with_hooks(2, kSpec, [&](gsvHook_t hook, int rank) {
    train(hook, rank, 0, 5);
    std::vector<float> const residual = residual_of(hook);
    ASSERT_GSV(set_rule(hook, "none ; feedback=residual"));
    train(hook, rank, 5, 7);
    ASSERT_GSV(set_rule(hook, kSpec));

    EXPECT_EQ(residual_of(hook), residual);
  });
}

TEST(CSetRulesTest, AWrongSpecLeavesTheOldRulesInForce) {
  with_hooks(2, kSpec, [&](gsvHook_t hook, int rank) {
    train(hook, rank, 0, 3);
    EXPECT_EQ(set_rule(hook, "topk(density=7)"), gsvInvalidArgument);
    train(hook, rank, 3, 6);
    EXPECT_EQ(spec_that_ran(hook).find("topk"), 0U);
  });
}

TEST(CSetRulesTest, RanksThatDisagreeLearnOfItAndGoOnWithTheOldRules) {
  with_hooks(2, kSpec, [&](gsvHook_t hook, int rank) {
    train(hook, rank, 0, 3);
    EXPECT_EQ(set_rule(hook, rank == 0 ? "int8" : "int4"), gsvMismatch);
    train(hook, rank, 3, 6);
    EXPECT_EQ(spec_that_ran(hook).find("topk"), 0U);
  });
}

}  // namespace
}  // namespace gradsieve::testing
