// SPDX-License-Identifier: Apache-2.0
// Random numbers and hashes against the known answers that make_golden.py computed.
#include <gtest/gtest.h>

#include "gradsieve/wire.hpp"

#include "core/philox.hpp"
#include "tests/golden/golden_index.hpp"

namespace gradsieve::testing {
namespace {

std::uint32_t word(Json const& text) { return static_cast<std::uint32_t>(word_from_hex(text)); }

TEST(GoldenNumbers, PhiloxGivesTheKnownAnswers) {
  for (Json const& vector : golden_index()["numbers"]["philox"]) {
    Json const& counter = vector["counter"];
    PhiloxKey const key{word(vector["key"][0]), word(vector["key"][1])};
    std::uint64_t const block = word(counter[0]) | std::uint64_t{word(counter[1])} << 32;
    std::uint64_t const step = word(counter[2]) | std::uint64_t{word(counter[3])} << 32;

    auto const words = philox(key, block, step);

    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(words[i], word(vector["words"][i])) << vector;
  }
}

TEST(GoldenNumbers, KeysSeparateSeedTensorPurposeAndRank) {
  for (Json const& entry : golden_index()["numbers"]["keys"]) {
    TensorId const tensor = tensor_id(entry["tensor"].get<std::string>());
    EXPECT_EQ(tensor, word_from_hex(entry["tensor_id"]));

    PhiloxKey const key = philox_key(word_from_hex(entry["seed"]), tensor,
                                     static_cast<Purpose>(entry["purpose"].get<int>()),
                                     entry["rank"].get<std::uint32_t>());

    EXPECT_EQ(key.low, word(entry["key"][0])) << entry;
    EXPECT_EQ(key.high, word(entry["key"][1])) << entry;
  }
}

TEST(GoldenNumbers, EachElementHasItsRoundingBits) {
  Json const& numbers = golden_index()["numbers"];
  for (Json const& entry : numbers["keys"]) {
    RoundingKey const key{{word(entry["key"][0]), word(entry["key"][1])},
                          numbers["step"].get<std::uint64_t>(),
                          numbers["first_element"].get<std::uint64_t>()};
    auto const uniforms = numbers_from_hex<float>(entry["rounding_uniform"].get<std::string>());
    for (std::size_t i = 0; i < uniforms.size(); ++i) {
      EXPECT_EQ(rounding_bits(key, i), entry["rounding_bits"][i].get<std::uint32_t>())
          << "element " << i;
      EXPECT_EQ(rounding_uniform(key, i), uniforms[i]) << "element " << i;
      EXPECT_GT(uniforms[i], 0.0F);
      EXPECT_LT(uniforms[i], 1.0F);
    }
  }
}

TEST(GoldenNumbers, ChecksumIsXxh64WithSeedZero) {
  for (Json const& entry : golden_index()["numbers"]["xxh64"]) {
    auto const text = entry["text"].get<std::string>();
    EXPECT_EQ(wire::checksum(std::as_bytes(std::span(text))), word_from_hex(entry["hash"])) << text;
  }
}

}  // namespace
}  // namespace gradsieve::testing
