// SPDX-License-Identifier: Apache-2.0
// A C11 trainer gets the bits that the C++ hook gives.
#include <string>

#include <gtest/gtest.h>

#include "gradsieve/hook.hpp"

#include "tests/bindings/c_training.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

std::vector<Outcome> train_in_cpp(Case const& given) {
  std::vector<Outcome> runs(static_cast<std::size_t>(given.world_size));
  test::run_ranks(given.world_size, [&](Transport& transport) {
    Outcome& run = runs[static_cast<std::size_t>(transport.rank())];
    HookOptions options;
    options.rules = {{.match = "*", .spec = given.spec}};
    options.seed = 17;
    options.rollback = given.rollback;
    Hook hook(transport, options);
    std::vector<TensorDesc> tensors;
    for (std::size_t i = 0; i < kClientTensors; ++i)
      tensors.push_back({.name = "t" + std::to_string(i), .num_elements = given.elements[i]});
    hook.plan(tensors, std::vector<BucketDesc>{{{"t0", "t1"}}, {{"t2", "t3"}}});
    for (std::uint64_t step = 0; step < kNumSteps; ++step) {
      std::vector<float> gradients;
      for (std::uint32_t t = 0; t < kClientTensors; ++t) {
        for (std::uint64_t i = 0; i < given.elements[t]; ++i)
          gradients.push_back(client_gradient(transport.rank(), step, t, i));
      }
      std::span<float> const all = gradients;
      std::size_t const first = given.elements[0] + given.elements[1];
      Event event;
      ASSERT_TRUE(hook.begin(step).ok());
      ASSERT_TRUE(hook.reduce(0, all.first(first), event).ok());
      ASSERT_TRUE(hook.reduce(1, all.subspan(first), event).ok());
      ASSERT_TRUE(hook.finish().committed);
      run.results.insert(run.results.end(), gradients.begin(), gradients.end());
    }
    for (TensorDesc const& tensor : tensors) {
      std::vector<float> const residual = hook.residual(tensor.name);
      run.residuals.insert(run.residuals.end(), residual.begin(), residual.end());
    }
  });
  return runs;
}

class CHookTest : public ::testing::TestWithParam<Case> {};

TEST_P(CHookTest, GivesTheBitsOfTheCppHook) {
  std::vector<Outcome> const in_c = train_in_c(GetParam());
  std::vector<Outcome> const in_cpp = train_in_cpp(GetParam());

  for (std::size_t rank = 0; rank < in_c.size(); ++rank) {
    std::string const name = "rank " + std::to_string(rank);
    expect_same_bits(in_cpp[rank].results, in_c[rank].results, name + ", results");
    expect_same_bits(in_cpp[rank].residuals, in_c[rank].residuals, name + ", residuals");
    expect_same_bits(in_c[0].results, in_c[rank].results, name + " against rank 0");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Specs, CHookTest,
    ::testing::Values(Case{"none_1", "none", 1}, Case{"none_3", "none", 3},
                      Case{"topk_int8_2", "topk(density=0.05) | int8 ; feedback=residual", 2},
                      Case{"topk_int8_exact_3", "topk(density=0.05) | int8 ; feedback=residual", 3,
                           Rollback::exact},
                      Case{"int4_two_shot_2", "int4 ; feedback=residual", 2},
                      Case{"randomk_3", "randomk(density=0.1) ; feedback=residual(decay=0.9)", 3},
                      Case{"cltk_2", "cltk(density=0.1) ; feedback=residual", 2},
                      Case{"sign_with_empty_tensors_2",
                           "sign ; feedback=residual",
                           2,
                           Rollback::merge,
                           {0, 33, 4099, 0}}),
    [](auto const& tested) { return tested.param.name; });

// The same exchanges, driven by wait and finish instead of a thread of their own.
TEST(CHookTest, NeedsNoProgressThread) {
  Case const given{"", "topk(density=0.05) ; feedback=residual", 1};
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(1);
  ClientJob job = {given.spec.c_str(), kNumSteps, gsvRollbackMerge, 1, {257, 1, 1025, 64}};
  Outcome run{std::vector<float>(kNumSteps * total(given)), std::vector<float>(total(given))};

  ASSERT_EQ(
      client_train(comms[0].get(), context.get(), &job, run.results.data(), run.residuals.data()),
      gsvSuccess);

  expect_same_bits(train_in_cpp(given)[0].results, run.results, "results");
}

}  // namespace
}  // namespace gradsieve::testing
