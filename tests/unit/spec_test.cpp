// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
// GoogleTest comes first: the adapter of rapidcheck needs its macros.
#include <string>

#include <rapidcheck/gtest.h>

#include "gradsieve/spec.hpp"
#include "gradsieve/vocabulary.hpp"

#include "tests/unit/fake_plugins.hpp"

namespace gradsieve {
namespace {

std::string error(std::string const& text) {
  Code code = Code::ok;
  std::string const sentence =
      testing::error_of([&] { static_cast<void>(parse_spec(text)); }, &code);
  EXPECT_EQ(code, Code::invalid_argument) << sentence;
  return sentence;
}

TEST(Spec, ReadsAChainWithClauses) {
  Spec const spec = parse_spec(
      "topk(density=0.01) | int8(block=256) | index(auto) ; feedback=residual(decay=0.9) ; "
      "exchange=auto");

  ASSERT_EQ(spec.chain.size(), 3U);
  EXPECT_EQ(spec.chain[0], (Stage{"topk", {{"density", "0.01"}}}));
  EXPECT_EQ(spec.chain[1], (Stage{"int8", {{"block", "256"}}}));
  EXPECT_EQ(spec.chain[2], (Stage{"index", {{"", "auto"}}}));
  ASSERT_EQ(spec.clauses.size(), 2U);
  EXPECT_EQ(spec.clauses[0], (Clause{"feedback", {"residual", {{"decay", "0.9"}}}}));
  EXPECT_EQ(spec.clauses[1], (Clause{"exchange", {"auto", {}}}));
}

TEST(Spec, AClauseMayHoldACount) {
  EXPECT_EQ(parse_spec("topk ; dense_below=4096").clauses.front(),
            (Clause{"dense_below", {"4096", {}}}));
}

TEST(Spec, BlanksAreFreeBetweenWords) {
  Spec const tight = parse_spec("topk(0.1,hold=2)|int8;scope=model");

  EXPECT_EQ(parse_spec(" topk\t( 0.1 ,\n hold = 2 ) | int8 ; scope = model "), tight);
  EXPECT_EQ(parse_spec("topk()"), parse_spec("topk"));
}

TEST(Spec, FormatsWithSingleBlanks) {
  EXPECT_EQ(format_spec(parse_spec(
                "topk(0.1,hold=2)|int8;scope=model;feedback=residual(decay=1,dtype=f32)")),
            "topk(0.1, hold=2) | int8 ; scope=model ; feedback=residual(decay=1, dtype=f32)");
  EXPECT_EQ(format_spec({}), "");
}

TEST(Spec, LetsWrongSpellingsOfNamesThrough) {
  EXPECT_EQ(parse_spec("topK").chain.front().name, "topK");
  EXPECT_EQ(parse_spec("top-k").chain.front().name, "top-k");
}

TEST(Spec, ShowsWhereItIsWrongAndWhatWasExpected) {
  EXPECT_EQ(error("topk(density=0.01 | int8"),
            "spec, character 19: expected ',' or ')', found '|'\n"
            "  topk(density=0.01 | int8\n"
            "                    ^");
  EXPECT_EQ(error(""),
            "spec, character 1: expected the name of a stage, found the end\n"
            "  \n"
            "  ^");
}

TEST(Spec, EveryKindOfMistakeSaysWhatWasExpected) {
  struct Case {
    char const* text;
    char const* expected;
  };
  constexpr Case kCases[] = {
      {"topk |", "expected the name of a stage, found the end"},
      {"| int8", "expected the name of a stage, found '|'"},
      {"topk || int8", "expected the name of a stage, found '|'"},
      {"8int", "expected the name of a stage, found '8'"},
      {"topk int8", "expected '(', '|', ';' or the end, found 'i'"},
      {"topk(1) int8", "expected '|', ';' or the end, found 'i'"},
      {"topk(", "expected a parameter, as in density=0.01, found the end"},
      {"topk(,)", "expected a parameter, as in density=0.01, found ','"},
      {"topk(0.1,)", "expected a parameter, as in density=0.01, found ')'"},
      {"topk(density=)", "expected a value, found ')'"},
      {"topk(density==1)", "expected a value, found '='"},
      {"topk(=1)", "expected a parameter, as in density=0.01, found '='"},
      {"topk(1=2)", "expected the name of a parameter before '=', found '1'"},
      {"topk(a=1=2)", "expected ',' or ')', found '='"},
      {"topk(0.1", "expected ',' or ')', found the end"},
      {"topk(0.1))", "expected '|', ';' or the end, found ')'"},
      {"topk((0.1))", "expected a parameter, as in density=0.01, found '('"},
      {"topk ;", "expected the key of a clause, as in ; feedback=residual, found the end"},
      {"topk ; feedback", "expected '=', found the end"},
      {"topk ; feedback=", "expected the value of the clause, found the end"},
      {"topk ; feedback=(1)", "expected the value of the clause, found '('"},
      {"topk\x01", "expected '(', '|', ';' or the end, found '?'"}};
  for (Case const& wrong : kCases) {
    EXPECT_NE(error(wrong.text).find(wrong.expected), std::string::npos) << wrong.text << "\n"
                                                                         << error(wrong.text);
  }
}

TEST(Spec, ShowsOnlyAPartOfALongSpec) {
  std::string const sentence = error(std::string(1000, ' ') + "topk(0.1" + std::string(1000, ' ') +
                                     "!" + std::string(1000, ' '));

  EXPECT_LT(sentence.size(), 300U);
  EXPECT_NE(sentence.find("character 2009: expected ',' or ')', found '!'"), std::string::npos)
      << sentence;
}

rc::Gen<std::string> word_of(char const* first, char const* rest) {
  auto const letter = [](char const* letters) { return rc::gen::elementOf(std::string(letters)); };
  return rc::gen::map(
      rc::gen::pair(letter(first), rc::gen::container<std::string>(letter(rest))),
      [](std::pair<char, std::string> const& parts) { return parts.first + parts.second; });
}

rc::Gen<std::string> any_name() { return word_of("abxyz", "abxyz019_"); }

rc::Gen<Stage> any_stage() {
  auto const value = word_of("a0.-+*:/[\xc3", "a0.-+*:/]\xa9");
  auto const key = rc::gen::oneOf(rc::gen::just(std::string()), any_name());
  auto const argument = rc::gen::build<Stage::Argument>(
      rc::gen::set(&Stage::Argument::key, key), rc::gen::set(&Stage::Argument::value, value));
  return rc::gen::build<Stage>(
      rc::gen::set(&Stage::name, any_name()),
      rc::gen::set(&Stage::arguments, rc::gen::container<std::vector<Stage::Argument>>(argument)));
}

rc::Gen<Spec> any_spec() {
  auto const clause = rc::gen::build<Clause>(rc::gen::set(&Clause::key, any_name()),
                                             rc::gen::set(&Clause::value, any_stage()));
  return rc::gen::build<Spec>(
      rc::gen::set(&Spec::chain,
                   rc::gen::nonEmpty(rc::gen::container<std::vector<Stage>>(any_stage()))),
      rc::gen::set(&Spec::clauses, rc::gen::container<std::vector<Clause>>(clause)));
}

RC_GTEST_PROP(SpecProperty, WhatIsFormattedIsReadBackAsItWas, ()) {
  Spec const spec = *rc::gen::resize(12, any_spec());

  RC_ASSERT(parse_spec(format_spec(spec)) == spec);
}

// Either a Spec whose text means the same again, or an Error; never anything else.
void parse_anything(std::string const& text) {
  try {
    Spec const spec = parse_spec(text);
    RC_ASSERT(parse_spec(format_spec(spec)) == spec);
  } catch (Error const& error) {
    RC_ASSERT(error.code() == Code::invalid_argument);
  }
}

RC_GTEST_PROP(SpecProperty, AnyBytesGiveASpecOrAnError, (std::string const& text)) {
  parse_anything(text);
}

RC_GTEST_PROP(SpecProperty, AnyPunctuationGivesASpecOrAnError, ()) {
  parse_anything(
      *rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab1(),|;=. \n-"))));
}

RC_GTEST_PROP(SpecProperty, AnyDamagedSpecGivesASpecOrAnError, ()) {
  std::string text = format_spec(*rc::gen::resize(12, any_spec()));
  text[*rc::gen::inRange<std::size_t>(0, text.size())] = *rc::gen::arbitrary<char>();

  parse_anything(text);
}

}  // namespace
}  // namespace gradsieve
