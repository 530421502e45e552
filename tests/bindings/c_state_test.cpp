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

// --- other rules from an agreed step on ----------------------------------------------------------

gsvResult_t set_rule_at(gsvHook_t hook, char const* spec, std::uint64_t at_step) {
  gsvRule_t rule = GSV_INIT(gsvRule_t);
  rule.spec = spec;
  return gsvHookSetRulesAt(hook, &rule, 1, at_step);
}

gsvFailure_t failure_of(gsvHook_t hook) {
  gsvFailure_t failure = GSV_INIT(gsvFailure_t);
  EXPECT_GSV(gsvHookGetFailure(hook, &failure));
  return failure;
}

bool last_error_has(char const* part) {
  return std::string(gsvGetLastError()).find(part) != std::string::npos;
}

TEST(CSetRulesAtTest, TheyBeginAtTheStepAndGiveTheBitsOfACallThere) {
  std::vector<std::vector<float>> expected(2);
  with_hooks(2, kSpec, [&](gsvHook_t hook, int rank) {
    train(hook, rank, 0, 5);
    ASSERT_GSV(set_rule(hook, "int8 ; feedback=residual"));
    expected[static_cast<std::size_t>(rank)] = train(hook, rank, 5, 8);
  });

  with_hooks(2, kSpec, [&](gsvHook_t hook, int rank) {
    train(hook, rank, 0, 2);
    ASSERT_GSV(set_rule_at(hook, "int8 ; feedback=residual", 5));
    train(hook, rank, 2, 5);
    EXPECT_EQ(spec_that_ran(hook).find("topk"), 0U) << spec_that_ran(hook);
    std::vector<float> const result = train(hook, rank, 5, 8);
    EXPECT_EQ(spec_that_ran(hook).find("int8"), 0U) << spec_that_ran(hook);
    EXPECT_EQ(result, expected[static_cast<std::size_t>(rank)]);
  });
}

TEST(CSetRulesAtTest, BeforeAnyPlanAndWhereTheStepItselfIsLeftOut) {
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(3);
  for_each_rank(3, [&](int rank) {
    HookPtr const hook =
        make_hook(comms[static_cast<std::size_t>(rank)].get(), context.get(), kSpec);
    ASSERT_GSV(set_rule_at(hook.get(), "int4", 2));
    ASSERT_GSV(set_rule_at(hook.get(), "none", 4));
    ASSERT_GSV(set_rule_at(hook.get(), "int8", 4));  // in its place
    ASSERT_GSV(plan_one(hook.get(), kElements));
    train(hook.get(), rank, 0, 2);
    EXPECT_EQ(spec_that_ran(hook.get()).find("topk"), 0U);
    train(hook.get(), rank, 2, 3);
    EXPECT_EQ(spec_that_ran(hook.get()).find("int4"), 0U);
    train(hook.get(), rank, 6, 7);
    EXPECT_EQ(spec_that_ran(hook.get()).find("int8"), 0U);
  });
}

TEST(CSetRulesAtTest, RanksThatNameDifferentStepsOrRulesLearnOfItAtOnce) {
  with_hooks(3, kSpec, [&](gsvHook_t hook, int rank) {
    train(hook, rank, 0, 3);
    EXPECT_EQ(set_rule_at(hook, "int8", rank == 2 ? 5 : 4), gsvMismatch);
    EXPECT_TRUE(
        last_error_has("set_rules: ranks disagree on at_step: rank 0 has '4', rank 2 has "
                       "'5'"))
        << gsvGetLastError();
    EXPECT_EQ(failure_of(hook).rank, 2);
    EXPECT_STREQ(failure_of(hook).field, "at_step");
    EXPECT_EQ(set_rule_at(hook, rank == 1 ? "int4" : "int8", 4), gsvMismatch);
    EXPECT_EQ(failure_of(hook).rank, 1);
    EXPECT_STREQ(failure_of(hook).field, "spec");

    train(hook, rank, 3, 7);
    EXPECT_EQ(spec_that_ran(hook).find("topk"), 0U);
  });
}

TEST(CSetRulesAtTest, ARankThatRefusesItsRulesIsNamedToTheOthers) {
  with_hooks(2, kSpec, [&](gsvHook_t hook, int rank) {
    train(hook, rank, 0, 3);
    if (rank == 1) {
      EXPECT_EQ(set_rule_at(hook, "topk(density=7)", 3), gsvInvalidArgument);
      EXPECT_TRUE(last_error_has("density")) << gsvGetLastError();
    } else {
      EXPECT_EQ(set_rule_at(hook, "topk(density=0.7)", 3), gsvMismatch);
      EXPECT_TRUE(last_error_has("rank 1 has 'rules that are refused there: "))
          << gsvGetLastError();
    }
    EXPECT_EQ(set_rule_at(hook, "topq", 3), gsvUnknownName);  // on all ranks: each says why
    train(hook, rank, 3, 5);
    EXPECT_EQ(spec_that_ran(hook).find("topk(density=0.05"), 0U);
  });
}

TEST(CSetRulesAtTest, WhatDoesNotFitThePlanIsRefusedAtTheCall) {
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(1);
  HookPtr const hook = make_hook(comms[0].get(), context.get(), "none");
  gsvTensorDesc_t tensor = GSV_INIT(gsvTensorDesc_t);
  tensor.name = "w";
  tensor.num_elements = 3;
  tensor.dtype = gsvFloat64;
  std::uint32_t const index = 0;
  gsvBucketDesc_t bucket = GSV_INIT(gsvBucketDesc_t);
  bucket.tensors = &index;
  bucket.num_tensors = 1;
  ASSERT_GSV(gsvHookPlan(hook.get(), &tensor, 1, &bucket, 1));

  EXPECT_EQ(set_rule_at(hook.get(), "int8", 0), gsvInvalidArgument);
  EXPECT_TRUE(last_error_has("f64")) << gsvGetLastError();
  ASSERT_GSV(gsvHookBegin(hook.get(), 0, 1.0F));
  EXPECT_EQ(set_rule_at(hook.get(), "none", 1), gsvInvalidUsage);
  EXPECT_EQ(set_rule(hook.get(), "none"), gsvInvalidUsage);
}

TEST(CSetRulesAtTest, ARankThatDoesNotCallIsNamed) {
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(3);
  gsvHookOptions_t options = GSV_INIT(gsvHookOptions_t);
  options.exchange_deadline_ms = 200;
  for_each_rank(3, [&](int rank) {
    if (rank == 1) return;
    HookPtr const hook =
        make_hook(comms[static_cast<std::size_t>(rank)].get(), context.get(), kSpec, options);
    EXPECT_EQ(set_rule_at(hook.get(), "int8", 3), gsvTimeout);
    EXPECT_TRUE(last_error_has("set_rules: rank 1 did not answer")) << gsvGetLastError();
    EXPECT_EQ(failure_of(hook.get()).rank, 1);
  });
}

}  // namespace
}  // namespace gradsieve::testing
