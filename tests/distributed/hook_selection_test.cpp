// SPDX-License-Identifier: Apache-2.0
// What is chosen from, and for how long: scope=bucket, sets that are held, rules by tensor name.
#include <algorithm>
#include <memory>
#include <set>

#include <gtest/gtest.h>

#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"
#include "tests/support/simulated_ranks.hpp"

namespace gradsieve::testing {
namespace {

// Tensors of very different scale, so that a choice over the bucket differs from one per tensor.
std::vector<float> with_scale_of_its_tensor(int rank, std::uint64_t step, std::string const& tensor,
                                            std::uint64_t count) {
  std::vector<float> gradient = heavy_tailed_of(rank, step, tensor, count);
  float const scale = tensor == "t0" ? 1.0F : tensor == "t1" ? 64.0F : 0.015625F;
  for (float& x : gradient) x *= scale;
  return gradient;
}

TEST(HookSelection, ScopeBucketChoosesOverTheWholeBucket) {
  constexpr int kWorldSize = 3;
  test::run_ranks(kWorldSize, [](Transport& transport) {
    Layout const layout = all_in_one(one_bucket_each({700, 300, 500}));
    std::string const spec = "topk(density=0.02) ; feedback=residual";
    HookRank rank(transport, options_for(spec + " ; scope=bucket"), layout);
    SimulatedRanks model(make_chain(spec), whole_tensor("bucket", 1500),
                         {.world_size = kWorldSize});
    HookRank per_tensor(transport, options_for(spec), layout);
    bool differs = false;
    for (std::uint64_t step = 0; step < 8; ++step) {
      std::vector<Floats> gradients(kWorldSize);
      for (int r = 0; r < kWorldSize; ++r) {
        for (TensorDesc const& tensor : layout.tensors) {
          auto const part = with_scale_of_its_tensor(r, step, tensor.name, tensor.num_elements);
          gradients[static_cast<std::size_t>(r)].insert(
              gradients[static_cast<std::size_t>(r)].end(), part.begin(), part.end());
        }
      }
      rank.step(step, with_scale_of_its_tensor);
      per_tensor.step(step, with_scale_of_its_tensor);
      Outcome const outcome = model.step(step, gradients);

      ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
      EXPECT_EQ(rank.bucket(0), outcome.mean) << "step " << step;
      std::vector<float> kept;
      for (auto const& residual : rank.all_residuals()) {
        kept.insert(kept.end(), residual.begin(), residual.end());
      }
      EXPECT_EQ(kept, model.residual(transport.rank())) << "step " << step;
      differs = differs || per_tensor.bucket(0) != rank.bucket(0);
    }
    EXPECT_TRUE(differs) << "scope=tensor would have passed as well";
  });
}

class HookHold : public ::testing::TestWithParam<std::string> {};

TEST_P(HookHold, ASetIsKeptForItsStepsAndThenChanges) {
  constexpr std::size_t kCount = 2000;
  constexpr std::uint64_t kHold = 4;
  std::string const spec =
      GetParam() + "(density=0.01, hold=" + std::to_string(kHold) + ") ; feedback=residual";
  test::run_ranks(3, [&](Transport& transport) {
    HookRank rank(transport, options_for(spec), one_bucket_each({kCount}));
    std::vector<std::set<std::size_t>> sets;
    std::vector<std::uint64_t> bytes;
    for (std::uint64_t step = 0; step < 4 * kHold; ++step) {
      rank.step(step);
      std::set<std::size_t> sent;
      for (std::size_t i = 0; i < kCount; ++i) {
        if (rank.bucket(0)[i] != 0.0F) sent.insert(i);
      }
      sets.push_back(sent);
      bytes.push_back(rank.hook().tensor_stats()[0].wire_bytes);
    }
    for (std::uint64_t step = 0; step < sets.size(); ++step) {
      EXPECT_EQ(sets[step].size(), 20u);
      if (step % kHold != 0) {
        EXPECT_EQ(sets[step], sets[step - 1]) << "held, step " << step;
      } else if (step > 0) {
        EXPECT_NE(sets[step], sets[step - 1]) << "chosen anew, step " << step;
      }
    }
    // A new set of a leader costs its indices; a kept one a flag of 8 bytes, to two others.
    if (GetParam() == "cltk") {
      int const leader = 1;  // ⌊4/4⌋ mod 3
      std::uint64_t const extra = bytes[4] - bytes[5];
      EXPECT_EQ(extra > 0, transport.rank() == leader) << extra << " bytes";
    } else {
      EXPECT_EQ(std::set(bytes.begin(), bytes.end()).size(), 1u);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sparsifiers, HookHold, ::testing::Values("cltk", "randomk"),
                         [](auto const& c) { return c.param; });

// A held set is replicated state: it survives a rebuild, and a rolled-back step does not lose it.
TEST(HookHoldAndRollBack, AHeldSetSurvivesRebuildsAndRefusedSteps) {
  test::run_ranks(3, [](Transport& transport) {
    HookOptions options = options_for("cltk(density=0.01, hold=6) ; feedback=residual");
    options.rollback = Rollback::exact;
    Layout const apart = one_bucket_each({2000, 100});
    HookRank rank(transport, options, apart);
    HookRank other(transport, options, apart);
    for (std::uint64_t step = 0; step < 18; ++step) {
      rank.step(step);
      if (step % 5 == 1) {
        ASSERT_TRUE(rank.hook().refuse().ok());
        rank.step(step);  // the same gradient again
      }
      other.step(step);
      ASSERT_EQ(bits_of(rank.result_of("t0")), bits_of(other.result_of("t0"))) << "step " << step;
      if (step % 4 == 2) rank.plan(step % 8 == 2 ? all_in_one(apart) : apart);
    }
  });
}

TEST(HookRules, TheFirstThatMatchesDecides) {
  test::run_ranks(2, [](Transport& transport) {
    HookOptions options = options_for("topk(density=0.1) ; feedback=residual");
    options.rules = {{.match = "*.bias", .spec = "none"},
                     {.match = "layer?.weight", .spec = "int8 ; exchange=gather"},
                     {.match = "layer*", .spec = "bf16"},
                     {.match = "*", .spec = "topk(density=0.1) ; feedback=residual"}};
    Layout layout;
    for (char const* name :
         {"layer1.bias", "layer1.weight", "layer12.weight", "head", "head.biased"}) {
      layout.tensors.push_back({.name = name, .num_elements = 100});
    }
    layout = all_in_one(layout);
    HookRank rank(transport, options, layout);
    for (std::uint64_t step = 0; step < 6; ++step) rank.step(step);

    std::vector<Stats> const stats = rank.hook().tensor_stats();
    std::vector<std::string> const expected = {"none", "int8", "bf16", "topk", "topk"};
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(stats[i].spec.starts_with(expected[i])) << stats[i].name << ": " << stats[i].spec;
    }
  });
}

}  // namespace
}  // namespace gradsieve::testing
