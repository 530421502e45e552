// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <vector>

#include <gtest/gtest.h>

#include "tests/equivalence/cuda/cuda_cases.hpp"

namespace gradsieve::testing {
namespace {

TEST(CudaWiden, IsEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    SCOPED_TRACE(c.text());
    auto const stored = stored_as(c.dtype, make_gradient(c.shape, c.num_elements));
    std::vector<float> expected(c.num_elements);
    kernels::ref::widen({}, {stored.data(), c.num_elements, c.dtype}, expected);
    CudaStep step;
    OnDevice<std::byte> const values(step, stored, c.offset_elements * size_of(c.dtype));
    OnDevice<float> const out(step, std::vector<float>(c.num_elements, 7), c.residual_offset * 4);

    kernels::cuda::widen(step.context(), {values.data(), c.num_elements, c.dtype}, out.span());

    ASSERT_TRUE(went_well(step));
    ASSERT_TRUE(same_bytes(expected, out.read()));
    ASSERT_TRUE(out.intact());
  }
}

void expect_same_narrowing(CudaCase const& c, std::vector<float> const& values, bool saturate) {
  std::vector<std::byte> expected(values.size() * size_of(c.dtype));
  kernels::ref::narrow({}, values, saturate, {expected.data(), values.size(), c.dtype});
  CudaStep step;
  OnDevice<float> const in(step, values, c.residual_offset * 4);
  OnDevice<std::byte> const out(step, std::vector<std::byte>(expected.size()),
                                c.offset_elements * size_of(c.dtype));

  kernels::cuda::narrow(step.context(), in.span(), saturate, {out.data(), values.size(), c.dtype});

  ASSERT_TRUE(went_well(step));
  ASSERT_TRUE(same_bytes(expected, out.read()));
  ASSERT_TRUE(out.intact());
}

TEST(CudaNarrow, IsEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    SCOPED_TRACE(c.text());
    auto values = make_gradient(c.shape, c.num_elements);
    if (c.draw % 2 == 0) {
      for (float& x : values) x *= 1e5F;  // beyond f16, and below it with the denormals
    }
    expect_same_narrowing(c, values, c.draw % 4 < 2);
    if (HasFatalFailure()) return;
  }
}

// Each half, the midpoint above it and the floats next to both; every seventh, as the emulator is
// slow.
TEST(CudaNarrowAroundHalves, IsEquivalentToRef) {
  for (DType const dtype : {DType::f16, DType::bf16}) {
    std::vector<std::byte> halves(65536 * 2);
    for (std::uint32_t i = 0; i < 65536; ++i) {
      auto const bits = static_cast<std::uint16_t>(i);
      std::memcpy(halves.data() + 2 * i, &bits, 2);
    }
    std::vector<float> exact(65536);
    kernels::ref::widen({}, {halves.data(), 65536, dtype}, exact);
    std::vector<float> values;
    for (std::size_t i = 0; i + 1 < exact.size(); i += is_quick_subset() ? 61 : 7) {
      auto const below = std::bit_cast<std::uint32_t>(exact[i]);
      auto const middle = below + (std::bit_cast<std::uint32_t>(exact[i + 1]) - below) / 2;
      for (std::uint32_t const bits : {below - 1, below + 1, middle - 1, middle, middle + 1}) {
        values.push_back(std::bit_cast<float>(bits));
      }
    }
    CudaCase const c = {.dtype = dtype};
    for (bool const saturate : {false, true}) expect_same_narrowing(c, values, saturate);
  }
}

TEST(CudaAddScaled, IsEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    SCOPED_TRACE(c.text());
    auto const stored = stored_as(c.dtype, make_gradient(c.shape, c.num_elements));
    auto const before = make_gradient(c.shape, c.num_elements, 3);
    std::vector<float> expected = before;
    kernels::ref::add_scaled({}, {stored.data(), c.num_elements, c.dtype}, 1.0F / 3, expected);
    CudaStep step;
    OnDevice<std::byte> const values(step, stored, c.offset_elements * size_of(c.dtype));
    OnDevice<float> const sum(step, before, c.residual_offset * 4);
    OnDevice<float> const weight(step, std::vector<float>{1.0F / 3});

    kernels::cuda::add_scaled(
        step.context(), {values.data(), c.num_elements, c.dtype},
        c.draw % 2 == 0 ? StepValue<float>(1.0F / 3) : StepValue<float>::in_word(weight.data()),
        sum.span());

    ASSERT_TRUE(went_well(step));
    ASSERT_TRUE(same_bytes(expected, sum.read()));
    ASSERT_TRUE(sum.intact());
  }
}

}  // namespace
}  // namespace gradsieve::testing
