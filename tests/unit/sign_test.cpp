// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/ops.hpp"

namespace gradsieve::kernels {
namespace {

struct Signed {
  explicit Signed(std::vector<float> const& corrected, std::uint64_t block)
      : block_elements(block),
        signs((corrected.size() + 7) / 8),
        zeros(signs.size()),
        scales((corrected.size() + block - 1) / block),
        residual(corrected.size()) {
    ref::sign({}, corrected, block, signs, zeros, scales, residual, &any_zero);
  }

  std::vector<float> decoded() const {
    std::vector<float> sum(residual.size());
    ref::sign_add({}, signs.data(), any_zero != 0 ? zeros.data() : nullptr,
                  std::as_bytes(std::span(scales)).data(), block_elements, 1.0F, sum);
    return sum;
  }

  std::uint64_t block_elements;
  std::vector<std::byte> signs;
  std::vector<std::byte> zeros;
  std::vector<float> scales;
  std::vector<float> residual;
  std::uint32_t any_zero = 0;
};

TEST(Sign, SendsTheMeanMagnitudeOfTheNonzeroElements) {
  Signed const s({1.0F, -2.0F, 0.0F, 3.0F, -0.0F, -6.0F}, 8);

  EXPECT_EQ(s.any_zero, 1U);
  EXPECT_EQ(s.scales, std::vector<float>{3.0F});
  EXPECT_EQ(s.signs, std::vector<std::byte>{std::byte{0b100010}});
  EXPECT_EQ(s.zeros, std::vector<std::byte>{std::byte{0b010100}});
  EXPECT_EQ(s.decoded(), (std::vector<float>{3.0F, -3.0F, 0.0F, 3.0F, 0.0F, -3.0F}));
  EXPECT_EQ(s.residual, (std::vector<float>{-2.0F, 1.0F, 0.0F, 0.0F, 0.0F, -3.0F}));
}

TEST(Sign, BlocksThatEndWithinAByteShareIt) {
  Signed const s({-1.0F, -3.0F, 5.0F, -4.0F, 2.0F, -8.0F, 6.0F, 7.0F, -9.0F}, 3);

  EXPECT_EQ(s.any_zero, 0U);
  EXPECT_EQ(s.scales, (std::vector<float>{3.0F, 14.0F / 3, 22.0F / 3}));
  EXPECT_EQ(s.signs, (std::vector<std::byte>{std::byte{0b00101011}, std::byte{1}}));
}

TEST(Sign, C11ABlockOfZerosDecodesToZeros) {
  Signed const s({1.0F, -1.0F, 0.0F, 0.0F, 2.0F, 2.0F}, 2);

  EXPECT_EQ(s.scales, (std::vector<float>{1.0F, 0.0F, 2.0F}));
  EXPECT_EQ(s.decoded(), (std::vector<float>{1.0F, -1.0F, 0.0F, 0.0F, 2.0F, 2.0F}));
  EXPECT_EQ(s.residual, std::vector<float>(6, 0.0F));
}

TEST(Sign, C12AConstantBlockDecodesToItsConstant) {
  for (float const constant : {0.01F, -3e4F, 1e-42F}) {
    Signed const s(std::vector<float>(64, constant), 64);
    EXPECT_EQ(s.decoded(), std::vector<float>(64, constant));
    EXPECT_EQ(s.residual, std::vector<float>(64, 0.0F));
  }
}

TEST(SignAdd, AddsTheWeightedValue) {
  Signed const s({1.0F, -3.0F, 0.0F}, 4);
  std::vector<float> sum = {10.0F, 10.0F, 10.0F};

  ref::sign_add({}, s.signs.data(), s.zeros.data(), std::as_bytes(std::span(s.scales)).data(), 4,
                0.5F, sum);

  EXPECT_EQ(sum, (std::vector<float>{11.0F, 9.0F, 10.0F}));
}

}  // namespace
}  // namespace gradsieve::kernels
