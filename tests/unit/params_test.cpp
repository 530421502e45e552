// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include "gradsieve/registry.hpp"

#include "core/plugin_text.hpp"
#include "tests/unit/fake_plugins.hpp"

namespace gradsieve {
namespace {

class ParamsTest : public ::testing::Test {
 protected:
  // Checks the one stage that the spec holds.
  Params check(std::string const& text) const {
    Stage const stage = parse_spec(text).chain.front();
    return registry_.check(stage, *registry_.find(stage.name));
  }
  std::string error(std::string const& text, Code expected = Code::invalid_argument) const {
    Code code = Code::ok;
    std::string const sentence = testing::error_of([&] { static_cast<void>(check(text)); }, &code);
    EXPECT_EQ(code, expected) << text << ": " << sentence;
    return sentence;
  }
  Registry registry_ = testing::fake_registry();
};

TEST_F(ParamsTest, EveryDeclaredNameHasAValue) {
  Params const params = check("topk");

  EXPECT_EQ(params.real("density"), 0.01);
  EXPECT_EQ(params.integer("hold"), 1);
  EXPECT_FALSE(params.boolean("sampled"));
  EXPECT_EQ(params.choice("tie"), "lower");
  EXPECT_FALSE(params.with_feedback);
}

TEST_F(ParamsTest, GivenValuesReplaceDefaults) {
  Params const params = check("topk(density=1e-3, hold=7, sampled=true, tie=higher)");

  EXPECT_EQ(params.real("density"), 0.001);
  EXPECT_EQ(params.integer("hold"), 7);
  EXPECT_TRUE(params.boolean("sampled"));
  EXPECT_EQ(params.choice("tie"), "higher");
}

TEST_F(ParamsTest, AnArgumentWithoutAKeySetsThePositionalOne) {
  EXPECT_EQ(check("topk(0.5)").real("density"), 0.5);
  EXPECT_EQ(check("index(bitmap)").choice("form"), "bitmap");
}

TEST_F(ParamsTest, BooleansAreTrueFalseOnOff) {
  EXPECT_TRUE(check("topk(sampled=on)").boolean("sampled"));
  EXPECT_FALSE(check("topk(sampled=false)").boolean("sampled"));
  EXPECT_EQ(error("topk(sampled=1)"),
            "topk: sampled=1 is neither true nor false: expected true, false, on or off");
  error("topk(sampled=True)");
}

TEST_F(ParamsTest, RangesIncludeTheirEndsUnlessTheySayOtherwise) {
  EXPECT_EQ(check("topk(1)").real("density"), 1.0);
  EXPECT_EQ(check("int8(block=4096)").integer("block"), 4096);
  EXPECT_EQ(error("topk(density=0)"),
            "topk: density=0 is out of range: expected a fraction in (0, 1]");
  EXPECT_EQ(error("topk(density=1.5)"),
            "topk: density=1.5 is out of range: expected a fraction in (0, 1]");
  EXPECT_EQ(error("int8(block=0)"),
            "int8: block=0 is out of range: expected an integer in [1, 4096], in elements");
  error("topk(-0.5)");
}

TEST_F(ParamsTest, WhatIsNotANumberIsRefused) {
  for (char const* const text :
       {"nan", "NaN", "-nan", "inf", "-inf", "infinity", "0x1p-3", "0x1", "1e999", "1e-999", "0.5f",
        "0.5.1", "+0.5", "half", "0,5", "1e", "-", ".", "½"}) {
    std::string const spec = std::string("topk(density=") + text + ")";
    if (std::string(text) == "0,5") {
      EXPECT_THROW(static_cast<void>(check(spec)), Error) << spec;
      continue;
    }
    EXPECT_EQ(error(spec), std::string("topk: density=") + text +
                               " is not a number: expected a fraction in (0, 1]");
  }
}

TEST_F(ParamsTest, WhatIsNotAnIntegerIsRefused) {
  for (char const* const text :
       {"1.0", "1e3", "0x10", "+1", "7steps", "4K", "9223372036854775808"}) {
    EXPECT_EQ(error(std::string("topk(hold=") + text + ")"),
              std::string("topk: hold=") + text +
                  " is not an integer: expected an integer in [1, 100000], in steps");
  }
}

TEST_F(ParamsTest, AnEmptyValueIsRefusedEvenWithoutAParser) {
  Stage const stage{"topk", {{"density", ""}}};

  EXPECT_THROW(static_cast<void>(registry_.check(stage, *registry_.find("topk"))), Error);
}

TEST_F(ParamsTest, AWrongChoiceNamesTheNearestAndAll) {
  EXPECT_EQ(error("index(bitmpa)"),
            "index: form=bitmpa is not a choice; did you mean 'bitmap'? Expected one of: auto, "
            "bitmap, elias_fano");
  EXPECT_EQ(error("index(zzz)"),
            "index: form=zzz is not a choice: expected one of: auto, bitmap, elias_fano");
}

TEST_F(ParamsTest, AnUnknownKeyNamesTheNearestAndAll) {
  EXPECT_EQ(error("topk(densty=0.1)", Code::unknown_name),
            "topk: unknown parameter 'densty'; did you mean 'density'? topk takes: density, hold, "
            "sampled, tie");
  EXPECT_EQ(error("topk(bananas=1)", Code::unknown_name),
            "topk: unknown parameter 'bananas'; topk takes: density, hold, sampled, tie");
  EXPECT_EQ(error("bf16(block=1)", Code::unknown_name),
            "bf16: unknown parameter 'block'; bf16 takes no parameters");
}

TEST_F(ParamsTest, ANamelessArgumentNeedsAPositionalParameter) {
  EXPECT_EQ(error("int8(64)"), "int8: the argument '64' has no name; int8 takes: block");
}

TEST_F(ParamsTest, AKeyGivenTwiceIsRefused) {
  EXPECT_EQ(error("topk(density=0.1, density=0.1)"),
            "topk: the parameter 'density' is given twice");
  EXPECT_EQ(error("topk(0.1, density=0.2)"), "topk: the parameter 'density' is given twice");
  EXPECT_EQ(error("topk(0.1, 0.2)"), "topk: the parameter 'density' is given twice");
}

TEST_F(ParamsTest, APluginThatAsksForWhatItDidNotDeclareIsAnInternalError) {
  Params const params = check("topk");
  Code code = Code::ok;

  testing::error_of([&] { static_cast<void>(params.real("nothing")); }, &code);
  EXPECT_EQ(code, Code::internal);
  code = Code::ok;
  testing::error_of([&] { static_cast<void>(params.real("hold")); }, &code);
  EXPECT_EQ(code, Code::internal);
}

TEST(AcceptedValues, OpenRangesReadAsSentences) {
  ParamInfo param{.name = "x", .type = ParamType::real, .unit = "seconds"};
  EXPECT_EQ(accepted_values(param), "a number, in seconds");
  param.min = 0.0;
  EXPECT_EQ(accepted_values(param), "a number of at least 0, in seconds");
  param.min_excluded = true;
  EXPECT_EQ(accepted_values(param), "a number above 0, in seconds");
  param = {.name = "x", .type = ParamType::integer, .max = 9.0};
  EXPECT_EQ(accepted_values(param), "an integer of at most 9");
}

}  // namespace
}  // namespace gradsieve
