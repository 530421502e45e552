// SPDX-License-Identifier: Apache-2.0
#include "core/philox.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <set>
#include <utility>

#include <Random123/philox.h>
#include <gtest/gtest.h>

namespace gradsieve {
namespace {

using Words = std::array<std::uint32_t, 4>;

Words random123(PhiloxKey key, std::uint64_t block, std::uint64_t step) {
  r123::Philox4x32_R<10> const generator;
  auto const low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  auto const high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  auto const words =
      generator({{low(block), high(block), low(step), high(step)}}, {{key.low, key.high}});
  return {words[0], words[1], words[2], words[3]};
}

TEST(Philox, GivesThePublishedKnownAnswers) {
  EXPECT_EQ(philox({0, 0}, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff}, ~0ULL, ~0ULL),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0xa4093822, 0x299f31d0}, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EqualsRandom123) {
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    std::uint64_t const key_bits = mix64(3 * i);
    std::uint64_t const block = i % 3 == 0 ? i : mix64(3 * i + 1);
    std::uint64_t const step = i % 2 == 0 ? i : mix64(3 * i + 2);
    PhiloxKey const key = {static_cast<std::uint32_t>(key_bits),
                           static_cast<std::uint32_t>(key_bits >> 32)};
    ASSERT_EQ(philox(key, block, step), random123(key, block, step)) << i;
  }
}

TEST(Philox, KeysDifferInEveryArgument) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> keys;
  for (std::uint64_t const seed : {0U, 1U, 2U}) {
    for (TensorId const tensor : {tensor_id("weight"), tensor_id("bias"), TensorId{0}}) {
      for (Purpose const purpose :
           {Purpose::quantize, Purpose::quantize_owned, Purpose::residual, Purpose::select}) {
        for (std::uint32_t const rank : {0U, 1U, 2U, kSharedDraw}) {
          PhiloxKey const key = philox_key(seed, tensor, purpose, rank);
          keys.insert({key.low, key.high});
        }
      }
    }
  }
  EXPECT_EQ(keys.size(), 3U * 3 * 4 * 4);
}

TEST(RoundingBits, AreTheHalvesOfTheWordsInOrder) {
  RoundingKey const key = {{1, 2}, 3, 0};
  Words const first = philox(key.key, 0, 3);
  Words const second = philox(key.key, 1, 3);

  EXPECT_EQ(rounding_bits(key, 0), first[0] & 0xffffU);
  EXPECT_EQ(rounding_bits(key, 1), first[0] >> 16);
  EXPECT_EQ(rounding_bits(key, 6), first[3] & 0xffffU);
  EXPECT_EQ(rounding_bits(key, 7), first[3] >> 16);
  EXPECT_EQ(rounding_bits(key, 8), second[0] & 0xffffU);
}

TEST(RoundingBits, OfAPieceAreThoseOfItsTensor) {
  RoundingKey const whole = {{1, 2}, 3, 0};
  RoundingKey const piece = {{1, 2}, 3, 13};

  for (std::uint64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(rounding_bits(piece, i), rounding_bits(whole, 13 + i)) << i;
  }
}

TEST(RoundingUniform, IsStrictlyBetweenZeroAndOne) {
  RoundingKey const key = {{5, 6}, 7, 0};
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    float const u = rounding_uniform(key, i);
    ASSERT_GE(u, 0x1p-17F);
    ASSERT_LE(u, 1.0F - 0x1p-17F);
  }
}

}  // namespace
}  // namespace gradsieve
