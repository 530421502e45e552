// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/ops.hpp"

namespace gradsieve::kernels {
namespace {

using Codes = std::vector<std::byte>;
using Indices = std::vector<std::uint32_t>;

Codes bytes(std::initializer_list<int> values) {
  Codes codes;
  for (int const value : values) codes.push_back(static_cast<std::byte>(value));
  return codes;
}

bool decodes(auto& decode, Codes const& code, std::uint64_t universe, Indices const& expected) {
  Indices indices(expected.size());
  return decode({}, code, universe, indices) && indices == expected;
}

bool rejects(auto& decode, Codes const& code, std::uint64_t universe, std::size_t num_indices) {
  Indices indices(num_indices);
  return !decode({}, code, universe, indices);
}

TEST(Bitmap, HasOneBitForEachElement) {
  Codes code(2);

  ref::bitmap_encode({}, Indices{0, 3, 9}, 10, code);

  EXPECT_EQ(code, bytes({0b1001, 0b10}));
  EXPECT_TRUE(decodes(ref::bitmap_decode, code, 10, {0, 3, 9}));
}

TEST(Bitmap, RejectsWhatIsNoCode) {
  EXPECT_TRUE(rejects(ref::bitmap_decode, bytes({0b1001, 0b10}), 10, 2)) << "a bit too many";
  EXPECT_TRUE(rejects(ref::bitmap_decode, bytes({0b1001, 0b10}), 10, 4)) << "a bit too few";
  EXPECT_TRUE(rejects(ref::bitmap_decode, bytes({0b1001, 0b100}), 10, 3)) << "an unused bit";
  EXPECT_TRUE(rejects(ref::bitmap_decode, bytes({0b1011}), 10, 3)) << "a byte too few";
  EXPECT_TRUE(rejects(ref::bitmap_decode, bytes({0b1011, 0, 0}), 10, 3)) << "a byte too many";
}

TEST(EliasFano, TheWidthOfTheLowPartIsTheLogarithmOfTheSpacing) {
  EXPECT_EQ(elias_fano_low_bits(100, 0), 0U);
  EXPECT_EQ(elias_fano_low_bits(100, 100), 0U);
  EXPECT_EQ(elias_fano_low_bits(100, 51), 0U);
  EXPECT_EQ(elias_fano_low_bits(100, 50), 1U);
  EXPECT_EQ(elias_fano_low_bits(100, 25), 2U);
  EXPECT_EQ(elias_fano_low_bits(kMaxPieceElements, 1), 31U);
}

TEST(EliasFano, HasLowPartsAndUnaryHighParts) {
  // U = 32, k = 4: l = 3. Low parts 2, 5, 6, 7; high parts 0, 1, 1, 3 at the bits 0, 2, 3, 6 of
  // 4 + 3 + 1.
  Indices const indices = {2, 13, 14, 31};
  EXPECT_EQ(elias_fano_low_bits(32, 4), 3U);
  EXPECT_EQ(elias_fano_bytes(32, 4), 2U + 1U);
  Codes code(3);

  ref::elias_fano_encode({}, indices, 32, code);

  EXPECT_EQ(code, bytes({0b10'101'010, 0b1111, 0b01001101}));
  EXPECT_TRUE(decodes(ref::elias_fano_decode, code, 32, indices));
}

TEST(EliasFano, OfAllElementsHasNoLowParts) {
  Codes code(elias_fano_bytes(3, 3));

  ref::elias_fano_encode({}, Indices{0, 1, 2}, 3, code);

  EXPECT_EQ(code, bytes({0b010101}));
  EXPECT_TRUE(decodes(ref::elias_fano_decode, code, 3, {0, 1, 2}));
}

TEST(EliasFano, OfNoElementHasNoBytes) {
  EXPECT_EQ(elias_fano_bytes(1000, 0), 0U);
  EXPECT_EQ(elias_fano_bytes(0, 0), 0U);
  EXPECT_TRUE(decodes(ref::elias_fano_decode, {}, 1000, {}));
  EXPECT_TRUE(rejects(ref::elias_fano_decode, bytes({0}), 1000, 0));
}

TEST(EliasFano, RejectsWhatIsNoCode) {
  auto& decode = ref::elias_fano_decode;
  EXPECT_TRUE(rejects(decode, bytes({0b10'101'010, 0b1111, 0b11001101}), 32, 4))
      << "a one too many";
  EXPECT_TRUE(rejects(decode, bytes({0b10'101'010, 0b1111, 0b00001101}), 32, 4)) << "a one too few";
  EXPECT_TRUE(rejects(decode, bytes({0b10'101'010, 0b11111, 0b01001101}), 32, 4))
      << "an unused bit";
  EXPECT_TRUE(rejects(decode, bytes({0b10'101'010, 0b1111, 0b10001101}), 32, 4)) << "past the end";
  EXPECT_TRUE(rejects(decode, bytes({0b01'110'010, 0b1111, 0b01001101}), 32, 4)) << "not ascending";
  EXPECT_TRUE(rejects(decode, bytes({0b10'101'010, 0b1111, 0b01001101}), 31, 4)) << "not below 31";
  EXPECT_TRUE(rejects(decode, bytes({0b10'101'010, 0b1111}), 32, 4)) << "a byte too few";
}

// With one index l = 31: the high part 2 stands for 2^32, which 32 bits take for 0.
TEST(EliasFano, RejectsAnIndexPastThirtyTwoBits) {
  EXPECT_TRUE(decodes(ref::elias_fano_decode, bytes({7, 0, 0, 0, 0b001}), kMaxPieceElements, {7}));
  EXPECT_TRUE(rejects(ref::elias_fano_decode, bytes({7, 0, 0, 0, 0b100}), kMaxPieceElements, 1));
}

TEST(EliasFano, RejectsMoreIndicesThanThereAreElements) {
  for (std::size_t num_indices = 4; num_indices < 40; ++num_indices) {
    EXPECT_TRUE(rejects(ref::elias_fano_decode,
                        Codes(elias_fano_bytes(3, num_indices), std::byte{0xff}), 3, num_indices));
  }
}

}  // namespace
}  // namespace gradsieve::kernels
