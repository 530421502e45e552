// SPDX-License-Identifier: Apache-2.0
#include "core/hash.hpp"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace gradsieve {
namespace {

TEST(PlanHash, IsTheFormulaOfItsHeader) {
  EXPECT_EQ(PlanHash(7).value(), mix64(7));
  EXPECT_EQ(PlanHash(7).add(std::uint64_t{3}).value(), mix64(mix64(7) ^ 3));
}

TEST(PlanHash, DependsOnTheOrder) {
  EXPECT_NE(PlanHash().add(1).add(2).value(), PlanHash().add(2).add(1).value());
}

TEST(PlanHash, KnowsWhereATextEnds) {
  EXPECT_NE(PlanHash().add("ab").add("c").value(), PlanHash().add("a").add("bc").value());
  EXPECT_NE(PlanHash().add("").value(), PlanHash().value());
  EXPECT_NE(PlanHash().add("a").value(), PlanHash().add(std::string_view("a\0", 2)).value());
}

TEST(PlanHash, EveryByteCounts) {
  std::string const text = "layers.0.attention.weight";
  std::set<std::uint64_t> values = {PlanHash().add(text).value()};
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      values.insert(PlanHash().add(changed).value());
    }
  }

  EXPECT_EQ(values.size(), 1 + 8 * text.size());
}

TEST(PlanHash, TellsTheSignOfZeroApart) {
  EXPECT_NE(PlanHash().add(0.0).value(), PlanHash().add(-0.0).value());
}

}  // namespace
}  // namespace gradsieve
