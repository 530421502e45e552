// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gtest/gtest.h>

#include "tests/equivalence/cuda/cuda_cases.hpp"

namespace gradsieve::testing {
namespace {

using Indices = std::vector<std::uint32_t>;

Indices some_indices(std::uint64_t universe, std::uint64_t k) {
  Indices indices(k);
  kernels::ref::randomk({}, {1, 2}, 3, universe, indices);
  return indices;
}

/// A third of the blocks of a case, the last one always: it may be short.
Indices chosen_blocks(CudaCase const& c, std::uint64_t granularity) {
  std::uint64_t const universe = (c.num_elements + granularity - 1) / granularity;
  Indices indices = some_indices(universe, universe / 3);
  if (universe != 0 && (indices.empty() || indices.back() + 1 != universe)) {
    indices.push_back(static_cast<std::uint32_t>(universe - 1));
  }
  return indices;
}

std::uint64_t granularity_of(CudaCase const& c) {
  return std::array<std::uint64_t, 4>{1, 7, 256, 1}[c.draw % 4];
}

// The device is told a room with garbage behind the indices, and their number in a word.
TEST(CudaTakeAndScatterAdd, AreEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    std::uint64_t const granularity = granularity_of(c);
    SCOPED_TRACE(c.text() + "; granularity " + std::to_string(granularity));
    Indices const indices = chosen_blocks(c, granularity);
    std::uint64_t const universe = (c.num_elements + granularity - 1) / granularity;
    std::size_t const num_values =
        indices.empty() ? 0
                        : indices.size() * granularity - (universe * granularity - c.num_elements);
    auto const before = make_gradient(c.shape, c.num_elements);
    auto expected_x = before;
    std::vector<float> expected_values(num_values);
    kernels::ref::take({}, indices, granularity, expected_x, expected_values);
    auto expected_sum = before;
    kernels::ref::scatter_add({}, indices, granularity, expected_values, 0.25F, expected_sum);

    bool const is_bounded = c.draw >> 8 & 1;
    std::size_t const slack = is_bounded ? 5 : 0;
    Indices room = indices;
    room.resize(room.size() + slack, 0);
    expected_values.resize(num_values + slack * granularity, 7);
    CudaStep step;
    OnDevice<std::uint32_t> const device_indices(step, room, c.offset_elements * 4);
    OnDevice<std::uint64_t> const count(step, std::vector<std::uint64_t>{indices.size()});
    OnDevice<float> const x(step, before, c.residual_offset * 4);
    OnDevice<float> const values(step, std::vector<float>(expected_values.size(), 7));
    OnDevice<float> const sum(step, before, c.residual_offset * 4);
    kernels::IndexSpan const set(device_indices.span(), is_bounded ? count.data() : nullptr);

    kernels::cuda::take(step.context(), set, granularity, x.span(), values.span());
    kernels::cuda::scatter_add(step.context(), set, granularity, values.span(), 0.25F, sum.span());

    ASSERT_TRUE(went_well(step));
    ASSERT_TRUE(same_bytes(expected_x, x.read()));
    ASSERT_TRUE(same_bytes(expected_values, values.read()));
    ASSERT_TRUE(same_bytes(expected_sum, sum.read()));
    ASSERT_TRUE(x.intact() && values.intact() && sum.intact());
  }
}

TEST(CudaCompensateTake, IsEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    std::uint64_t const granularity = granularity_of(c);
    SCOPED_TRACE(c.text() + "; granularity " + std::to_string(granularity));
    Indices const indices = chosen_blocks(c, granularity);
    std::uint64_t const universe = (c.num_elements + granularity - 1) / granularity;
    std::size_t const num_values =
        indices.empty() ? 0
                        : indices.size() * granularity - (universe * granularity - c.num_elements);
    auto const stored = stored_as(c.dtype, make_gradient(c.shape, c.num_elements));
    auto const before = finite_values(c, 2);
    std::vector<float> expected(c.num_elements);
    std::vector<float> expected_values(num_values);
    auto const flags = kernels::ref::compensate_take({}, {stored.data(), c.num_elements, c.dtype},
                                                     {before, expected, 0.5F}, indices, granularity,
                                                     expected_values);
    CudaStep step;
    OnDevice<std::byte> const gradient(step, stored, c.offset_elements * size_of(c.dtype));
    OnDevice<float> const residual(step, before, c.residual_offset * 4);
    OnDevice<std::uint32_t> const device_indices(step, indices, c.offset_elements * 4);
    OnDevice<float> const values(step, std::vector<float>(num_values, 7));

    auto const returned =
        kernels::cuda::compensate_take(step.context(), {gradient.data(), c.num_elements, c.dtype},
                                       {residual.span(), residual.span(), 0.5F},
                                       device_indices.span(), granularity, values.span());

    ASSERT_TRUE(went_well(step));
    ASSERT_TRUE(same_bytes(expected, residual.read()));
    ASSERT_TRUE(same_bytes(expected_values, values.read()));
    ASSERT_TRUE(residual.intact() && values.intact());
    ASSERT_EQ(returned, 0U);
    ASSERT_EQ(step.read_words().flags, flags);
  }
}

TEST(CudaScatterAdd, SkipsIndicesOutOfBounds) {
  CudaStep step;
  Indices const wrong = {1, 8, 0xffffffffU, 3};
  OnDevice<std::uint32_t> const indices(step, wrong);
  OnDevice<float> const values(step, std::vector<float>{1, 2, 4, 8});
  OnDevice<float> const sum(step, std::vector<float>(8, 0.5F));

  kernels::cuda::scatter_add(step.context(), indices.span(), 1, values.span(), 2, sum.span());

  ASSERT_TRUE(went_well(step));
  EXPECT_EQ(sum.read(), (std::vector<float>{0.5F, 2.5F, 0.5F, 16.5F, 0.5F, 0.5F, 0.5F, 0.5F}));
  EXPECT_TRUE(sum.intact());
}

std::uint32_t flags_of_check(Indices const& indices, std::uint64_t universe,
                             std::uint64_t const* count = nullptr) {
  CudaStep step;
  OnDevice<std::uint32_t> const device_indices(step, indices);
  OnDevice<std::uint64_t> const word(step,
                                     std::vector<std::uint64_t>{count == nullptr ? 0 : *count});
  EXPECT_TRUE(kernels::cuda::check_indices(
      step.context(), {device_indices.span(), count == nullptr ? nullptr : word.data()}, universe));
  EXPECT_TRUE(went_well(step));
  return step.read_words().flags;
}

TEST(CudaCheckIndices, IsEquivalentToRef) {
  for (std::size_t const k : {1, 2, 31, 33, 1025, 4099}) {
    if (is_quick_subset() && k > 1025) continue;
    Indices const good = some_indices(4 * k, k);
    EXPECT_EQ(flags_of_check(good, 4 * k), 0U);
    for (std::size_t const at : {std::size_t{0}, k / 2, k - 1}) {
      for (std::uint32_t const wrong : {0U, static_cast<std::uint32_t>(4 * k), 0xffffffffU}) {
        Indices indices = good;
        indices[at] = wrong;
        bool const is_right = kernels::ref::check_indices({}, indices, 4 * k);
        ASSERT_EQ(flags_of_check(indices, 4 * k), is_right ? 0U : kStepCorrupt)
            << "k " << k << ", index " << at << " is " << wrong;
      }
    }
  }
}

TEST(CudaCheckIndices, ReadsTheCountWhereItLives) {
  Indices const indices = {1, 5, 9, 2, 0};
  std::uint64_t count = 3;
  EXPECT_EQ(flags_of_check(indices, 10, &count), 0U);
  EXPECT_EQ(flags_of_check(indices, 9, &count), kStepCorrupt);
  count = 4;
  EXPECT_EQ(flags_of_check(indices, 10, &count), kStepCorrupt);
  count = 0;
  EXPECT_EQ(flags_of_check(indices, 10, &count), 0U);
  count = 6;  // more than the room
  EXPECT_EQ(flags_of_check({1, 5, 9}, 10, &count), kStepCorrupt);
}

}  // namespace
}  // namespace gradsieve::testing
