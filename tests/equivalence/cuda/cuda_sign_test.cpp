// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "tests/equivalence/cuda/cuda_cases.hpp"

namespace gradsieve::testing {
namespace {

/// 5000: more than one stretch of the sum, the last one short; 1 << 20: one block for all.
std::uint64_t block_of(CudaCase const& c) {
  constexpr std::array<std::uint64_t, 10> kBlocks = {1024,    256, 64, 4096, 5000,
                                                     1 << 20, 12,  1,  3,    128};
  return kBlocks[c.draw % kBlocks.size()];
}

std::size_t num_blocks(CudaCase const& c) {
  return static_cast<std::size_t>((c.num_elements + block_of(c) - 1) / block_of(c));
}

struct Outputs {
  std::vector<std::byte> signs;
  std::vector<std::byte> zeros;
  std::vector<float> scales;
  std::vector<float> residual;
  std::uint32_t any_zero = 0;

  explicit Outputs(CudaCase const& c)
      : signs((c.num_elements + 7) / 8, std::byte{0xff}),
        zeros(signs),
        scales(num_blocks(c), -1.0F),
        residual(c.num_elements, 7.0F) {}
};

struct DeviceOutputs {
  OnDevice<std::byte> signs;
  OnDevice<std::byte> zeros;
  OnDevice<float> scales;
  OnDevice<float> residual;
  OnDevice<std::uint32_t> any_zero;

  DeviceOutputs(CudaStep& step, CudaCase const& c, Outputs const& initial)
      : signs(step, initial.signs, c.draw >> 20 & 7),
        zeros(step, initial.zeros, c.draw >> 24 & 7),
        scales(step, initial.scales, (c.draw >> 28 & 3) * 4),
        residual(step, initial.residual, c.residual_offset * 4),
        any_zero(step, std::vector<std::uint32_t>{0}) {}

  void expect(Outputs const& expected) const {
    ASSERT_TRUE(same_bytes(expected.scales, scales.read()));
    ASSERT_TRUE(same_bytes(expected.signs, signs.read()));
    ASSERT_TRUE(same_bytes(expected.zeros, zeros.read()));
    ASSERT_TRUE(same_bytes(expected.residual, residual.read()));
    ASSERT_TRUE(same_bytes({expected.any_zero}, any_zero.read()));
    ASSERT_TRUE(signs.intact() && zeros.intact() && scales.intact() && residual.intact());
  }
};

TEST(CudaSign, IsEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    SCOPED_TRACE(c.text() + "; blocks of " + std::to_string(block_of(c)));
    auto const corrected = finite_values(c, 4);
    Outputs expected(c);
    if (!c.has_residual) expected.residual.clear();
    Outputs initial = expected;
    kernels::ref::sign({}, corrected, block_of(c), expected.signs, expected.zeros, expected.scales,
                       expected.residual, &expected.any_zero);
    CudaStep step;
    bool const in_place = c.in_place && c.has_residual;
    if (in_place) initial.residual = corrected;
    DeviceOutputs const actual(step, c, initial);
    OnDevice<float> const apart(step, corrected, c.offset_elements * 4);

    kernels::cuda::sign(step.context(), in_place ? actual.residual.span() : apart.span(),
                        block_of(c), actual.signs.span(), actual.zeros.span(), actual.scales.span(),
                        actual.residual.span(), actual.any_zero.data());

    ASSERT_TRUE(went_well(step));
    actual.expect(expected);
    if (HasFatalFailure()) return;
  }
}

TEST(CudaSignFused, IsEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    SCOPED_TRACE(c.text() + "; blocks of " + std::to_string(block_of(c)));
    auto const stored = stored_as(c.dtype, make_gradient(c.shape, c.num_elements));
    auto before = c.has_residual ? finite_values(c, 9) : std::vector<float>{};
    bool const in_place = c.in_place && c.has_residual;
    Outputs expected(c);
    Outputs initial = expected;
    auto const flags = kernels::ref::sign_fused(
        {}, {stored.data(), c.num_elements, c.dtype}, {before, expected.residual, 0.75F},
        block_of(c), expected.signs, expected.zeros, expected.scales, &expected.any_zero);
    CudaStep step;
    if (in_place) initial.residual = before;
    DeviceOutputs const actual(step, c, initial);
    OnDevice<std::byte> const gradient(step, stored, c.offset_elements * size_of(c.dtype));
    OnDevice<float> const carried(step, before, c.residual_offset * 4);
    OnDevice<float> const carry(step, std::vector<float>{0.75F});
    auto const out = actual.residual.span();

    kernels::cuda::sign_fused(
        step.context(), {gradient.data(), c.num_elements, c.dtype},
        {in_place ? out : carried.span(), out, StepValue<float>::in_word(carry.data())},
        block_of(c), actual.signs.span(), actual.zeros.span(), actual.scales.span(),
        actual.any_zero.data());

    ASSERT_TRUE(went_well(step));
    actual.expect(expected);
    if (HasFatalFailure()) return;
    ASSERT_EQ(step.read_words().flags, flags);
  }
}

// Any bits are planes; a sign bit at a zero comes from a damaged payload only.
TEST(CudaSignAdd, IsEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    SCOPED_TRACE(c.text() + "; blocks of " + std::to_string(block_of(c)));
    std::size_t const plane_bytes = (c.num_elements + 7) / 8;
    std::vector<std::byte> planes(2 * plane_bytes);
    for (std::size_t i = 0; i < planes.size(); ++i) planes[i] = std::byte(mix64(i) >> 56);
    std::vector<std::byte> scales(num_blocks(c) * sizeof(float));
    for (std::size_t block = 0; block < num_blocks(c); ++block) {
      float const scale = 0.01F * static_cast<float>(block % 7);
      std::memcpy(scales.data() + block * sizeof scale, &scale, sizeof scale);
    }
    auto const before = make_gradient(c.shape, c.num_elements, 5);
    std::vector<float> expected = before;
    auto const zeros_of = [&](std::byte const* data) {
      return c.in_place ? data + plane_bytes : nullptr;
    };
    kernels::ref::sign_add({}, planes.data(), zeros_of(planes.data()), scales.data(), block_of(c),
                           -1.0F / 3, expected);
    CudaStep step;
    OnDevice<std::byte> const device_planes(step, planes, c.offset_elements);
    OnDevice<std::byte> const device_scales(step, scales, c.draw >> 20 & 7);
    OnDevice<float> const sum(step, before, c.residual_offset * 4);

    kernels::cuda::sign_add(step.context(), device_planes.data(), zeros_of(device_planes.data()),
                            device_scales.data(), block_of(c), -1.0F / 3, sum.span());

    ASSERT_TRUE(went_well(step));
    ASSERT_TRUE(same_bytes(expected, sum.read()));
    ASSERT_TRUE(sum.intact());
  }
}

}  // namespace
}  // namespace gradsieve::testing
