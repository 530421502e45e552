// SPDX-License-Identifier: Apache-2.0
// What every plug-in says of itself, and that it takes nothing outside of it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradsieve/registry.hpp"

#include "tests/support/plugin_specs.hpp"

namespace gradsieve::testing {
namespace {

using ::testing::HasSubstr;
using ParamKind = gradsieve::ParamType;  // a parametrised test has a ParamType of its own

std::vector<PluginInfo> plugins() {
  std::vector<PluginInfo> result;
  for (PluginInfo const* info : plugins_under_test()) result.push_back(*info);
  return result;
}

class EveryPlugin : public ::testing::TestWithParam<PluginInfo> {
 protected:
  /// The code that a stage with this one argument is refused with; ok if it is accepted.
  static Code check(std::string const& key, std::string const& value,
                    std::string* message = nullptr) {
    Stage stage{GetParam().name, {}};
    for (ParamInfo const& param : GetParam().params) {
      if (param.name != key && param.default_value.empty()) {
        auto const example = parse_spec(GetParam().name + required_arguments(GetParam())).chain[0];
        for (auto const& argument : example.arguments) {
          if (argument.key == param.name) stage.arguments.push_back(argument);
        }
      }
    }
    stage.arguments.push_back({key, value});
    try {
      static_cast<void>(builtin_registry().check(stage, GetParam()));
      return Code::ok;
    } catch (Error const& error) {
      if (message != nullptr) *message = error.what();
      return error.code();
    }
  }

  static std::string text(double value) {
    char buffer[400];
    std::snprintf(buffer, sizeof buffer, "%.17g", value);
    return buffer;
  }
};

TEST_P(EveryPlugin, IsDocumented) {
  PluginInfo const& info = GetParam();

  EXPECT_GE(info.summary.size(), 20u) << "a summary is a sentence";
  EXPECT_FALSE(info.paper.empty()) << "authors, venue, arXiv id, or \"-\"";
  std::set<std::string> names;
  for (ParamInfo const& param : info.params) {
    SCOPED_TRACE(param.name);
    EXPECT_TRUE(names.insert(param.name).second) << "two parameters of one name";
    EXPECT_FALSE(param.summary.empty());
    bool const is_number = param.type == ParamKind::real || param.type == ParamKind::integer;
    EXPECT_EQ(is_number, !param.unit.empty()) << "numbers have a unit, others have none";
    EXPECT_EQ(param.type == ParamKind::choice, !param.choices.empty());
    if (is_number) {
      EXPECT_TRUE(std::isfinite(param.min)) << "a number has a range";
      EXPECT_LT(param.min, param.max);
    }
  }
  if (!info.positional.empty()) {
    EXPECT_TRUE(names.contains(info.positional)) << "positional names no parameter";
  }
}

TEST_P(EveryPlugin, CanBeFoundByNameAndPayloadId) {
  std::string const prefix = GetParam().kind == PluginKind::feedback ? "feedback=" : "";
  EXPECT_EQ(builtin_registry().find(prefix + GetParam().name)->summary, GetParam().summary);
  if (GetParam().kind == PluginKind::compressor) {
    EXPECT_NE(GetParam().payload_id, 0) << "payload ids of compressors begin at 1";
    EXPECT_EQ(builtin_registry().find_payload_id(GetParam().payload_id)->name, GetParam().name);
  }
}

TEST_P(EveryPlugin, AcceptsItsDefaultsAndTheEndsOfEachRange) {
  for (ParamInfo const& param : GetParam().params) {
    SCOPED_TRACE(param.name);
    if (!param.default_value.empty()) {
      EXPECT_EQ(check(param.name, param.default_value), Code::ok);
    }
    for (std::string const& choice : param.choices) {
      EXPECT_EQ(check(param.name, choice), Code::ok) << choice;
    }
    if (std::isfinite(param.min) && !param.min_excluded) {
      EXPECT_EQ(check(param.name, text(param.min)), Code::ok) << param.min;
    }
    if (std::isfinite(param.max)) {
      EXPECT_EQ(check(param.name, text(param.max)), Code::ok) << param.max;
    }
  }
}

TEST_P(EveryPlugin, RejectsEachNumberOutOfRange) {
  for (ParamInfo const& param : GetParam().params) {
    if (param.type != ParamKind::real && param.type != ParamKind::integer) continue;
    bool const is_integer = param.type == ParamKind::integer;
    double const huge = std::numeric_limits<double>::max();
    std::vector<std::string> wrong = {"nan", "-nan", "inf",   "-inf",  "1e999",
                                      "ten", "0x",   "1.2.3", "12abc", "--1"};
    double const below = is_integer ? param.min - 1 : std::nextafter(param.min, -huge);
    wrong.push_back(text(below));
    if (param.min_excluded) wrong.push_back(text(param.min));
    if (std::isfinite(param.max)) {
      wrong.push_back(text(is_integer ? std::max(param.max + 1, param.max * 1.5)
                                      : std::nextafter(param.max, huge)));
    }
    if (is_integer) {
      wrong.insert(wrong.end(), {text(param.min + 0.5), "99999999999999999999999"});
    }
    for (std::string const& value : wrong) {
      SCOPED_TRACE(param.name + "=" + value);
      std::string message;
      EXPECT_EQ(check(param.name, value, &message), Code::invalid_argument);
      EXPECT_THAT(message, HasSubstr(param.name)) << "the sentence names the parameter";
    }
  }
}

TEST_P(EveryPlugin, RejectsEachChoiceItDoesNotOffer) {
  for (ParamInfo const& param : GetParam().params) {
    if (param.type != ParamKind::choice && param.type != ParamKind::boolean) continue;
    SCOPED_TRACE(param.name);
    std::string message;
    EXPECT_EQ(check(param.name, "something_else", &message), Code::invalid_argument);
    for (std::string const& choice : param.choices) {
      EXPECT_THAT(message, HasSubstr(choice)) << "the sentence says what is accepted";
    }
  }
}

TEST_P(EveryPlugin, RejectsAnUnknownKeyAndNamesTheNearest) {
  for (ParamInfo const& param : GetParam().params) {
    if (param.name.size() < 4) continue;
    std::string misspelt = param.name;
    std::swap(misspelt[1], misspelt[2]);
    if (misspelt == param.name) misspelt += 'x';
    std::string message;
    Code const code =
        check(misspelt, param.default_value.empty() ? "1" : param.default_value, &message);
    EXPECT_TRUE(code == Code::unknown_name || code == Code::invalid_argument) << misspelt;
    EXPECT_THAT(message, HasSubstr(param.name));
  }
}

TEST_P(EveryPlugin, RejectsAParameterGivenTwice) {
  for (ParamInfo const& param : GetParam().params) {
    if (param.default_value.empty()) continue;
    Stage const twice{GetParam().name,
                      {{param.name, param.default_value}, {param.name, param.default_value}}};
    EXPECT_THROW(static_cast<void>(builtin_registry().check(twice, GetParam())), Error)
        << param.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryPlugin, ::testing::ValuesIn(plugins()), [](auto const& c) {
  return test_name(std::string(plugin_kind_name(c.param.kind)) + "_" + c.param.name);
});

TEST(Registry, HoldsWhatTheFirstVersionPromises) {
  std::vector<std::string> names;
  for (PluginInfo const& info : plugins()) names.push_back(info.name);
  for (char const* name : {"none", "bf16", "fp16", "int8", "int4", "sign", "zstd", "topk",
                           "threshold", "randomk", "blocktopk", "cltk", "index", "residual"}) {
    EXPECT_THAT(names, ::testing::Contains(name));
  }
}

TEST(Registry, RefusesOnlyCombinationsThatMakeNoSense) {
  for (RefusedSpec const& refused : refused_specs()) {
    SCOPED_TRACE(refused.spec + ": " + refused.message);
    // A shared set is summed and codes no indices, only a shared set can be held, and index forms
    // may be reserved for later versions; everything else combines with everything.
    if (refused.code != Code::not_implemented) {
      EXPECT_TRUE(refused.shared_indices || refused.spec.find("hold=") != std::string::npos);
      EXPECT_EQ(refused.code, Code::invalid_argument);
    }
    EXPECT_GE(refused.message.size(), 20u) << "a refusal is a sentence";
  }
}

TEST(Registry, RefusesASecondPluginOfTheSameNameOrPayloadId) {
  Registry registry;
  register_builtin_plugins(registry);
  auto const factory = Registry::FeedbackFactory([](Params const&) { return FeedbackOptions{}; });

  EXPECT_THROW(registry.add({.name = "residual", .kind = PluginKind::feedback}, factory), Error);
  auto const compressor =
      Registry::CompressorFactory([](Params const&) { return std::unique_ptr<Compressor>(); });
  EXPECT_THROW(
      registry.add({.name = "other", .kind = PluginKind::compressor, .payload_id = 1}, compressor),
      Error);
}

}  // namespace
}  // namespace gradsieve::testing
