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

TEST(CudaSign, IsEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    SCOPED_TRACE(c.text() + "; blocks of " + std::to_string(block_of(c)));
    auto const corrected = finite_values(c, 4);
    std::size_t const plane_bytes = (c.num_elements + 7) / 8;
    std::vector<std::byte> signs(plane_bytes);
    std::vector<std::byte> zeros(plane_bytes);
    std::vector<float> scales(num_blocks(c));
    std::vector<float> residual(c.has_residual ? c.num_elements : 0);
    std::uint32_t any_zero = 0;
    kernels::ref::sign({}, corrected, block_of(c), signs, zeros, scales, residual, &any_zero);
    CudaStep step;
    bool const in_place = c.in_place && c.has_residual;
    std::vector<std::byte> const garbage(plane_bytes, std::byte{0xff});
    OnDevice<std::byte> const device_signs(step, garbage, c.draw >> 20 & 7);
    OnDevice<std::byte> const device_zeros(step, garbage, c.draw >> 24 & 7);
    OnDevice<float> const device_scales(step, std::vector<float>(scales.size(), -1),
                                        (c.draw >> 28 & 3) * 4);
    OnDevice<float> const apart(step, corrected, c.offset_elements * 4);
    OnDevice<float> const rest(step, in_place ? corrected : std::vector<float>(residual.size(), 7),
                               c.residual_offset * 4);
    OnDevice<std::uint32_t> const device_any_zero(step, std::vector<std::uint32_t>{0});

    kernels::cuda::sign(step.context(), in_place ? rest.span() : apart.span(), block_of(c),
                        device_signs.span(), device_zeros.span(), device_scales.span(), rest.span(),
                        device_any_zero.data());

    ASSERT_TRUE(went_well(step));
    ASSERT_TRUE(same_bytes(scales, device_scales.read()));
    ASSERT_TRUE(same_bytes(signs, device_signs.read()));
    ASSERT_TRUE(same_bytes(zeros, device_zeros.read()));
    ASSERT_TRUE(same_bytes(residual, rest.read()));
    ASSERT_TRUE(same_bytes({any_zero}, device_any_zero.read()));
    ASSERT_TRUE(device_signs.intact() && device_zeros.intact() && device_scales.intact() &&
                rest.intact());
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
