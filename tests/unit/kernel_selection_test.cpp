// SPDX-License-Identifier: Apache-2.0
// Selection on data that a person can check, and the faults that others met with it; the number in
// a name is that of the case.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/topk_plan.hpp"
#include "kernels/ops.hpp"
#include "kernels/ref/sparse.hpp"
#include "kernels/ref/topk.hpp"

namespace gradsieve::kernels {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A piece with its residual, and one selection from it.
struct Piece {
  explicit Piece(std::size_t num_elements) : residual(num_elements, 0.0F) {}

  std::vector<float> residual;
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  std::uint64_t num_overflowed = 0;
  Flags flags = 0;
};

class SelectionKernel : public ::testing::TestWithParam<Backend> {
 protected:
  template <typename Select>
  void run(Piece& piece, std::size_t capacity, std::size_t num_values, std::size_t workspace_bytes,
           Select const& select) {
    Buffer memory(workspace_bytes, host_memory());
    Workspace workspace(memory.bytes());
    ExecContext ctx;
    ctx.backend = GetParam();
    ctx.workspace = &workspace;
    ctx.threads = &pool_;
    piece.indices.resize(capacity);
    piece.values.resize(num_values);
    SparseView selection;
    selection.indices = piece.indices;
    selection.values = piece.values;
    piece.flags = select(ctx, ResidualView{piece.residual, piece.residual, 1.0F}, selection);
    piece.indices.resize(selection.num_indices);
    piece.values.resize(selection.num_values);
    piece.num_overflowed = selection.num_overflowed;
  }

  void topk_into(Piece& piece, ConstTensorView gradient, std::uint64_t k) {
    run(piece, k, k, topk_workspace_bytes(gradient.num_elements, k),
        [&](auto const& ctx, auto residual, auto& selection) {
          return topk(ctx, gradient, residual, k, selection);
        });
  }
  Piece topk_of(ConstTensorView gradient, std::uint64_t k) {
    Piece piece(gradient.num_elements);
    topk_into(piece, gradient, k);
    return piece;
  }
  Piece topk_of(std::vector<float> const& gradient, std::uint64_t k) {
    return topk_of(ConstTensorView(std::span(gradient)), k);
  }

  void threshold_into(Piece& piece, std::vector<float> const& gradient, float least,
                      std::size_t capacity) {
    run(piece, capacity, capacity, 0, [&](auto const& ctx, auto residual, auto& selection) {
      return threshold(ctx, std::span(gradient), residual, least, selection);
    });
  }

 private:
  ThreadPool pool_{3};
};

TEST_P(SelectionKernel, TopkKeepsTheLargestAndLeavesTheRest) {
  Piece const piece = topk_of({1, -4, 0.5F, 3, -2, 0}, 3);

  EXPECT_THAT(piece.indices, ElementsAre(1, 3, 4));
  EXPECT_THAT(piece.values, ElementsAre(-4, 3, -2));
  EXPECT_THAT(piece.residual, ElementsAre(1, 0, 0.5F, 0, 0, 0));
  EXPECT_EQ(piece.flags, 0U);
}

TEST_P(SelectionKernel, TopkAddsWhatWasLeftBefore) {
  Piece piece(4);
  piece.residual = {1, 0, -3, 0};

  topk_into(piece, std::span<float const>(std::vector<float>{1, 1.5F, 2, 0}), 1);

  EXPECT_THAT(piece.indices, ElementsAre(0));
  EXPECT_THAT(piece.values, ElementsAre(2));
  EXPECT_THAT(piece.residual, ElementsAre(0, 1.5F, -1, 0));
}

TEST_P(SelectionKernel, TopkC01NonFiniteElementsCountAsZero) {
  Piece const piece = topk_of({kNan, kInfinity, kInfinity, 3, kInfinity, -7}, 2);

  EXPECT_THAT(piece.indices, ElementsAre(3, 5));
  EXPECT_THAT(piece.values, ElementsAre(3, -7));
  EXPECT_THAT(piece.residual, Each(0.0F));
  EXPECT_EQ(piece.flags, kStepNonFinite);
}

TEST_P(SelectionKernel, TopkC01NonFiniteElementsLeaveTheResidualAsItWas) {
  Piece piece(3);
  piece.residual = {0.25F, 8, 0.5F};

  topk_into(piece, std::span<float const>(std::vector<float>{kNan, -kInfinity, 1}), 1);

  EXPECT_THAT(piece.indices, ElementsAre(1));
  EXPECT_THAT(piece.values, ElementsAre(8));
  EXPECT_THAT(piece.residual, ElementsAre(0.25F, 0, 1.5F));
}

TEST_P(SelectionKernel, TopkC02TiesGoToTheLowestIndex) {
  std::vector<float> gradient(65536);
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = i % 2 == 0 ? 0.25F : -0.25F;
  gradient[100] = 1;
  gradient[5000] = -1;
  gradient[60000] = 1;

  EXPECT_THAT(topk_of(gradient, 7).indices, ElementsAre(0, 1, 2, 3, 100, 5000, 60000));
}

TEST_P(SelectionKernel, TopkC03BothZerosAreOneTie) {
  Piece const piece = topk_of({-0.0F, 0.0F, -0.0F, 5, 0.0F, -0.0F}, 4);

  EXPECT_THAT(piece.indices, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(piece.values, ElementsAre(0, 0, 0, 5));
}

TEST_P(SelectionKernel, TopkC03OneNonzeroAmongManyZeros) {
  std::vector<float> gradient(100000, -0.0F);
  gradient[77777] = 1;

  Piece const piece = topk_of(gradient, 1000);

  ASSERT_EQ(piece.indices.size(), 1000U);
  for (std::uint32_t j = 0; j < 999; ++j) ASSERT_EQ(piece.indices[j], j);
  EXPECT_EQ(piece.indices[999], 77777U);
  EXPECT_EQ(piece.values[999], 1.0F);
}

TEST_P(SelectionKernel, TopkC04AllElementsWhenKIsTheirNumber) {
  std::vector<float> const gradient = {0, -1, 2, -3, 4, -5, 6, -7, 8, -9};

  Piece const piece = topk_of(gradient, 10);

  EXPECT_THAT(piece.indices, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(piece.values, gradient);
  EXPECT_THAT(piece.residual, Each(0.0F));
  EXPECT_THAT(topk_of(gradient, 1).indices, ElementsAre(9));
}

TEST_P(SelectionKernel, TopkC05IndicesOfHalvesPass16Bits) {
  constexpr Float16 kNine = {0x4880};
  constexpr Float16 kEight = {0x4800};
  constexpr Float16 kSeven = {0x4700};
  for (std::uint32_t const n : {40000U, 70000U}) {
    std::vector<Float16> gradient(n);
    gradient[n - 1] = kNine;
    gradient[32768] = kEight;
    gradient[5] = kSeven;

    Piece const piece = topk_of(std::span(gradient), 3);

    EXPECT_THAT(piece.indices, ElementsAre(5, 32768, n - 1));
    EXPECT_THAT(piece.values, ElementsAre(7, 8, 9));
  }
}

TEST_P(SelectionKernel, TopkOfNothingChoosesNothing) {
  EXPECT_THAT(topk_of(std::vector<float>{}, 0).indices, IsEmpty());
  Piece const piece = topk_of({1, 2}, 0);
  EXPECT_THAT(piece.indices, IsEmpty());
  EXPECT_THAT(piece.residual, ElementsAre(1, 2));
}

TEST_P(SelectionKernel, ThresholdC10SendsWhatHasAccumulated) {
  Piece piece(1000);
  std::vector<float> const gradient(1000, 0.2F);
  double total = 0;

  for (int step = 1; step <= 30; ++step) {
    threshold_into(piece, gradient, 0.5F, 1000);
    ASSERT_EQ(piece.indices.size(), step % 3 == 0 ? 1000U : 0U) << "step " << step;
    if (step == 3) {
      EXPECT_THAT(piece.values, Each(0.2F + 0.2F + 0.2F));
      EXPECT_THAT(piece.residual, Each(0.0F));
    }
    total += piece.values.empty() ? 0.0 : piece.values[999];
  }

  EXPECT_NEAR(total, 6.0, 1e-5);
}

TEST_P(SelectionKernel, ThresholdC10EqualityIsEnough) {
  Piece piece(1000);
  std::vector<float> const gradient(1000, 0.25F);

  threshold_into(piece, gradient, 0.5F, 1000);
  EXPECT_THAT(piece.indices, IsEmpty());
  threshold_into(piece, gradient, 0.5F, 1000);

  EXPECT_EQ(piece.indices.size(), 1000U);
  EXPECT_THAT(piece.values, Each(0.5F));
}

TEST_P(SelectionKernel, ThresholdLeavesAndCountsWhatDoesNotFit) {
  Piece piece(6);

  threshold_into(piece, {1, 2, 0.1F, -3, 4, 5}, 1, 3);

  EXPECT_THAT(piece.indices, ElementsAre(0, 1, 3));
  EXPECT_THAT(piece.values, ElementsAre(1, 2, -3));
  EXPECT_THAT(piece.residual, ElementsAre(0, 0, 0.1F, 0, 4, 5));
  EXPECT_EQ(piece.num_overflowed, 2U);
}

TEST_P(SelectionKernel, BlockTopkTakesWholeBlocksAndAShortLastOne) {
  std::vector<float> const gradient = {1, 1, 1, 0, -2, 0, 0, 2};
  for (BlockNorm const norm : {BlockNorm::l2, BlockNorm::linf}) {
    Piece piece(8);
    run(piece, 2, 6, block_topk_workspace_bytes(8, 3, 2),
        [&](auto const& ctx, auto residual, auto& selection) {
          return block_topk(ctx, std::span(gradient), residual, 3, norm, 2, selection);
        });

    EXPECT_THAT(piece.indices, ElementsAre(1, 2));
    EXPECT_THAT(piece.values, ElementsAre(0, -2, 0, 0, 2));
    EXPECT_THAT(piece.residual, ElementsAre(1, 1, 1, 0, 0, 0, 0, 0));
  }
}

TEST_P(SelectionKernel, BlockTopkNormsDiffer) {
  std::vector<float> const gradient = {2, 2, 2, 3, 0, 0};
  auto const winner = [&](BlockNorm norm) {
    Piece piece(6);
    run(piece, 1, 3, block_topk_workspace_bytes(6, 3, 1),
        [&](auto const& ctx, auto residual, auto& selection) {
          return block_topk(ctx, std::span(gradient), residual, 3, norm, 1, selection);
        });
    return piece.indices.at(0);
  };

  EXPECT_EQ(winner(BlockNorm::l2), 0U);
  EXPECT_EQ(winner(BlockNorm::linf), 1U);
}

TEST_P(SelectionKernel, RandomkC09EveryElementIsChosenAsOften) {
  constexpr int kSteps = 20000;
  ExecContext ctx;
  ctx.backend = GetParam();
  PhiloxKey const key = philox_key(7, tensor_id("weight"), Purpose::select, kSharedDraw);
  std::vector<int> times(1000);
  std::vector<std::uint32_t> indices(10);
  std::vector<std::uint32_t> before;

  for (int step = 0; step < kSteps; ++step) {
    randomk(ctx, key, static_cast<std::uint64_t>(step), 1000, indices);
    ASSERT_TRUE(check_indices(ctx, indices, 1000));
    ASSERT_NE(indices, before);
    for (std::uint32_t const i : indices) ++times[i];
    before = indices;
  }

  auto const [fewest, most] = std::minmax_element(times.begin(), times.end());
  EXPECT_GE(*fewest, kSteps * (0.010 - 0.0035));
  EXPECT_LE(*most, kSteps * (0.010 + 0.0035));
}

/// A gradient whose sampled elements are all `sampled`, so that the sample says nothing of the
/// rest.
std::vector<float> misleading_gradient(std::size_t num_elements, std::uint64_t k, float sampled) {
  std::vector<float> gradient(num_elements);
  for (std::size_t i = 0; i < num_elements; ++i) {
    gradient[i] = static_cast<float>(mix64(i) % 65536 + 1) * 0x1p-17F;
  }
  std::uint64_t const num_samples = cpu::plan_topk(num_elements, k).num_samples;
  for (std::uint64_t j = 0; j < num_samples; ++j) {
    gradient[cpu::sample_position(j, num_elements, num_samples)] = sampled;
  }
  return gradient;
}

TEST_P(SelectionKernel, TopkIsExactWhereTheSampleMisleads) {
  constexpr std::size_t kElements = 65536;
  for (float const sampled : {1.0F, 0.0F}) {  // too few candidates, and too many
    for (std::uint64_t const k : {100U, 6000U}) {
      auto const gradient = misleading_gradient(kElements, k, sampled);
      std::vector<std::uint32_t> expected(k);
      ref::choose_topk<float>(gradient, expected);

      Piece const piece = topk_of(gradient, k);

      ASSERT_EQ(piece.indices, expected);
      auto rest = gradient;
      for (std::size_t j = 0; j < k; ++j) {
        ASSERT_EQ(piece.values[j], gradient[expected[j]]);
        rest[expected[j]] = 0.0F;
      }
      ASSERT_EQ(piece.residual, rest);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SelectionKernel, ::testing::Values(Backend::ref, Backend::cpu),
                         [](auto const& backend) {
                           return backend.param == Backend::ref ? "ref" : "cpu";
                         });

TEST(CpuTopk, ChoosesNothingWithoutItsWorkspace) {
  std::vector<float> const gradient = {3, 1, 2};
  std::vector<float> residual(3);
  std::vector<std::uint32_t> indices(2);
  std::vector<float> values(2);
  SparseView selection;
  selection.indices = indices;
  selection.values = values;

  cpu::topk({}, std::span(gradient), {{}, residual, 1.0F}, 2, selection);

  EXPECT_EQ(selection.num_indices, 0U);
  EXPECT_EQ(residual, gradient);
}

TEST(RefTemplates, ChooseAndTakeInDouble) {
  std::vector<double> x = {1e-300, -1e300, 0, 2, -2};
  std::vector<std::uint32_t> chosen(2);
  std::vector<double> values(2);

  ref::choose_topk<double>(x, chosen);
  ref::take_selected<double>(chosen, 1, x, values);

  EXPECT_THAT(chosen, ElementsAre(1, 3));
  EXPECT_THAT(values, ElementsAre(-1e300, 2));
  EXPECT_THAT(x, ElementsAre(1e-300, 0, 0, 0, -2));
}

}  // namespace
}  // namespace gradsieve::kernels
