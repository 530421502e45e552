// SPDX-License-Identifier: Apache-2.0
#include "core/glob.hpp"

#include <string>

#include <gtest/gtest.h>

namespace gradsieve {
namespace {

TEST(Glob, WithoutWildcardsIsEquality) {
  EXPECT_TRUE(glob_match("bias", "bias"));
  EXPECT_FALSE(glob_match("bias", "biases"));
  EXPECT_FALSE(glob_match("bias", "bia"));
  EXPECT_FALSE(glob_match("bias", "Bias"));
  EXPECT_TRUE(glob_match("", ""));
  EXPECT_FALSE(glob_match("", "a"));
}

TEST(Glob, AStarStandsForAnythingAndNothing) {
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("*", "layers.0.weight"));
  EXPECT_TRUE(glob_match("*.bias", "layers.0.bias"));
  EXPECT_TRUE(glob_match("layers.*.weight", "layers.0.attention.weight"));
  EXPECT_TRUE(glob_match("a**b*", "ab"));
  EXPECT_FALSE(glob_match("*.bias", "layers.0.weight"));
}

TEST(Glob, AQuestionMarkStandsForOneCharacter) {
  EXPECT_TRUE(glob_match("layers.?.bias", "layers.7.bias"));
  EXPECT_FALSE(glob_match("layers.?.bias", "layers.12.bias"));
  EXPECT_FALSE(glob_match("?", ""));
}

TEST(Glob, GoesBackToALaterPlaceForAStar) {
  EXPECT_TRUE(glob_match("*ab", "aabab"));
  EXPECT_FALSE(glob_match("a*b?d", "abcdbbxxd"));
  EXPECT_TRUE(glob_match("a*b?d", "abcdbbd"));
  EXPECT_TRUE(glob_match("*a*a*", "banana"));
}

TEST(Glob, ManyStarsTakeNoExponentialTime) {
  std::string pattern;
  for (int i = 0; i < 50; ++i) pattern += "*a";

  EXPECT_FALSE(glob_match(pattern + "b", std::string(5000, 'a')));
}

}  // namespace
}  // namespace gradsieve
