// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gtest/gtest.h>

#include "tests/equivalence/cuda/cuda_cases.hpp"

namespace gradsieve::testing {
namespace {

TEST(CudaCompensate, IsEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    SCOPED_TRACE(c.text());
    auto const stored = stored_as(c.dtype, make_gradient(c.shape, c.num_elements));
    auto const before = c.has_residual ? finite_values(c, 2) : std::vector<float>{};
    float const carry = c.draw % 2 == 0 ? 0.7F : 1.0F;
    std::vector<float> expected(c.num_elements);
    auto const flags = kernels::ref::compensate({}, {stored.data(), c.num_elements, c.dtype},
                                                {std::vector(before), expected, carry});
    CudaStep step;
    OnDevice<std::byte> const gradient(step, stored, c.offset_elements * size_of(c.dtype));
    OnDevice<float> const in(step, before, c.residual_offset * 4);
    OnDevice<float> const apart(step, std::vector<float>(c.num_elements, 7), c.residual_offset * 4);
    OnDevice<float> const& out = c.in_place && c.has_residual ? in : apart;
    OnDevice<float> const carry_word(step, std::vector<float>{carry});
    step.set_words({.step = 5, .flags = kStepOverflow});

    ResidualView residual = {in.span(), out.span(), carry};
    if (c.draw % 3 == 0) residual.carry = StepValue<float>::in_word(carry_word.data());
    auto const returned = kernels::cuda::compensate(
        step.context(), {gradient.data(), c.num_elements, c.dtype}, residual);

    ASSERT_TRUE(went_well(step));
    ASSERT_TRUE(same_bytes(expected, out.read()));
    ASSERT_TRUE(out.intact());
    ASSERT_EQ(returned, 0U);
    ASSERT_EQ(step.read_words().flags, flags | kStepOverflow);
    ASSERT_EQ(step.read_words().step, 5U);
  }
}

TEST(CudaRetain, IsEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    SCOPED_TRACE(c.text());
    auto const decoded = make_gradient(c.shape, c.num_elements);
    auto const before = make_gradient(c.shape, c.num_elements, 2);
    std::vector<float> expected = before;
    kernels::ref::retain({}, decoded, expected);
    CudaStep step;
    OnDevice<float> const subtracted(step, decoded, c.offset_elements * 4);
    OnDevice<float> const residual(step, before, c.residual_offset * 4);

    kernels::cuda::retain(step.context(), subtracted.span(), residual.span());

    ASSERT_TRUE(went_well(step));
    ASSERT_TRUE(same_bytes(expected, residual.read()));
    ASSERT_TRUE(residual.intact());
  }
}

TEST(CudaStoreBf16, IsEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    SCOPED_TRACE(c.text());
    auto const values = make_gradient(c.shape, c.num_elements);
    // Word borders of the random numbers fall anywhere, and the element number passes 2^32 blocks.
    RoundingKey key = {{7, 9}, 5, c.draw % 3 == 0 ? (1ULL << 35) - 21 : c.draw % 23};
    std::vector<BFloat16> expected(c.num_elements);
    kernels::ref::store_bf16({}, values, key, expected);
    CudaStep step;
    OnDevice<float> const in(step, values, c.residual_offset * 4);
    OnDevice<BFloat16> const out(step, std::vector<BFloat16>(c.num_elements),
                                 c.offset_elements * 2);
    step.set_words({.step = 5});
    if (c.draw % 2 == 0) key.step = StepValue<std::uint64_t>::in_word(&step.words()->step);

    kernels::cuda::store_bf16(step.context(), in.span(), key, out.span());

    ASSERT_TRUE(went_well(step));
    ASSERT_TRUE(same_bytes(expected, out.read()));
    ASSERT_TRUE(out.intact());
  }
}

TEST(CudaScaleAndSumSquares, AreEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    SCOPED_TRACE(c.text());
    auto const before = make_gradient(c.shape, c.num_elements);
    std::vector<float> expected = before;
    kernels::ref::scale({}, 0.3F, expected);
    double expected_sum = 0;
    kernels::ref::sum_squares({}, before, &expected_sum);
    CudaStep step(kernels::sum_squares_workspace_bytes(c.num_elements));
    OnDevice<float> const values(step, before, c.residual_offset * 4);
    OnDevice<double> const sum(step, std::vector<double>{-1});

    kernels::cuda::sum_squares(step.context(), values.span(), sum.data());
    ASSERT_TRUE(went_well(step));
    ASSERT_TRUE(same_bytes(before, values.read()));
    kernels::cuda::scale(step.context(), 0.3F, values.span());

    ASSERT_TRUE(went_well(step));
    ASSERT_TRUE(same_bytes(expected, values.read()));
    ASSERT_TRUE(values.intact() && sum.intact());
    if (c.shape != Shape::with_nan) {  // which of two NaN a sum gives is not ours to say
      ASSERT_TRUE(same_bytes({expected_sum}, sum.read()));
    }
  }
}

}  // namespace
}  // namespace gradsieve::testing
