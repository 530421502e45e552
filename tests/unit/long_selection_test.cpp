// SPDX-License-Identifier: Apache-2.0
// Top-k on more elements than others could take; the number in a name is that of the case.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "core/philox.hpp"
#include "kernels/ops.hpp"
#include "kernels/ref/topk.hpp"

namespace gradsieve::kernels {
namespace {

TEST(CpuTopk, C06ChoosesInEachOfManyLongRowsOnlyFromIt) {
  constexpr std::size_t kRows = 8;
  constexpr std::size_t kElements = 400'000;
  constexpr std::uint64_t kChosen = 25;
  std::vector<Float16> rows(kRows * kElements);
  for (std::size_t i = 0; i < rows.size(); ++i)  // uniform over halves in [0, 1): many ties
    rows[i].bits = static_cast<std::uint16_t>(mix64(i) % 0x3c00);
  Buffer memory(topk_workspace_bytes(kElements, kChosen), host_memory());
  for (std::size_t row = 0; row < kRows; ++row) {
    ConstTensorView const gradient(rows.data() + row * kElements, kElements, DType::f16);
    std::vector<float> wide(kElements);
    ref::widen({}, gradient, wide);
    std::vector<std::uint32_t> expected(kChosen);
    ref::choose_topk<float>(wide, expected);
    std::vector<float> residual(kElements);
    std::vector<std::uint32_t> indices(kChosen);
    std::vector<float> values(kChosen);
    SparseView selection;
    selection.indices = indices;
    selection.values = values;
    Workspace workspace(memory.bytes());
    ExecContext ctx;
    ctx.workspace = &workspace;

    cpu::topk(ctx, gradient, {{}, residual, 1.0F}, kChosen, selection);

    ASSERT_EQ(indices, expected) << "row " << row;
    for (std::size_t j = 0; j < kChosen; ++j) ASSERT_EQ(values[j], wide[indices[j]]);
  }
}

// A sum of four uniform numbers has the tails of a normal as far as one per cent goes.
TEST(CpuTopk, C08FindsTheCutForADensityInNineteenMillionElements) {
  constexpr std::size_t kElements = 19'000'000;
  constexpr std::uint64_t kChosen = 190'000;
  std::vector<float> gradient(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    std::uint64_t const bits = mix64(i);
    std::uint64_t const sum =
        (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    gradient[i] = static_cast<float>(static_cast<std::int64_t>(sum) - 131070);
  }
  std::vector<float> residual(kElements);
  std::vector<std::uint32_t> indices(kChosen);
  std::vector<float> values(kChosen);
  SparseView selection;
  selection.indices = indices;
  selection.values = values;
  Buffer memory(topk_workspace_bytes(kElements, kChosen), host_memory());
  Workspace workspace(memory.bytes());
  ExecContext ctx;
  ctx.workspace = &workspace;

  cpu::topk(ctx, std::span(gradient), {{}, residual, 1.0F}, kChosen, selection);

  ASSERT_EQ(selection.num_indices, kChosen);
  float least_sent = std::numeric_limits<float>::infinity();
  for (std::size_t j = 0; j < kChosen; ++j) {
    ASSERT_TRUE(j == 0 || indices[j - 1] < indices[j]) << "index " << j;
    ASSERT_EQ(values[j], gradient[indices[j]]);
    ASSERT_EQ(residual[indices[j]], 0.0F);
    least_sent = std::min(least_sent, std::fabs(values[j]));
  }
  float largest_left = 0.0F;
  std::size_t num_left = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    largest_left = std::max(largest_left, std::fabs(residual[i]));
    num_left += residual[i] == gradient[i] ? 1 : 0;
  }
  EXPECT_LE(largest_left, least_sent);
  EXPECT_GE(num_left, kElements - kChosen);
}

}  // namespace
}  // namespace gradsieve::kernels
