// SPDX-License-Identifier: Apache-2.0
#include "gradsieve/registry.hpp"

#include <string>

#include <gtest/gtest.h>

#include "core/nearest.hpp"
#include "core/plugin_text.hpp"
#include "tests/unit/fake_plugins.hpp"

namespace gradsieve {
namespace {

class RegistryTest : public ::testing::Test {
 protected:
  // The sentence with which add() refuses a declaration.
  std::string refusal(PluginInfo const& info,
                      Registry::Factory factory = testing::fake_compressor()) {
    Code code = Code::ok;
    std::string const sentence =
        testing::error_of([&] { registry_.add(info, std::move(factory)); }, &code);
    EXPECT_EQ(code, Code::invalid_usage) << sentence;
    return sentence;
  }
  Registry registry_ = testing::fake_registry();
};

TEST_F(RegistryTest, ListsByKindThenName) {
  std::string names;
  for (PluginInfo const* const plugin : registry_.plugins()) names += plugin->name + " ";

  EXPECT_EQ(names, "bf16 int8 topk index zstd residual ");
}

TEST_F(RegistryTest, FindsByNameAndByPayloadId) {
  ASSERT_NE(registry_.find("int8"), nullptr);
  EXPECT_EQ(registry_.find("int8")->payload_id, 4);
  EXPECT_EQ(registry_.find("int9"), nullptr);
  ASSERT_NE(registry_.find_payload_id(24), nullptr);
  EXPECT_EQ(registry_.find_payload_id(24)->name, "zstd");
  EXPECT_EQ(registry_.find_payload_id(0), nullptr);
  EXPECT_EQ(registry_.find_payload_id(99), nullptr);
}

TEST_F(RegistryTest, MakesEachKindFromItsStage) {
  auto const sparsifier = registry_.make_sparsifier({"topk", {{"", "0.5"}}}, true);
  auto const& fake = dynamic_cast<testing::FakeSparsifier const&>(*sparsifier);

  EXPECT_EQ(fake.params.real("density"), 0.5);
  EXPECT_TRUE(fake.params.with_feedback);
  EXPECT_NE(registry_.make_compressor({"int8", {}}), nullptr);
  EXPECT_NE(registry_.make_index_codec({"index", {}}), nullptr);
  EXPECT_NE(registry_.make_byte_codec({"zstd", {}}), nullptr);
  EXPECT_EQ(registry_.make_feedback({"residual", {{"decay", "0.9"}}}).decay, 0.9);
}

TEST_F(RegistryTest, AnUnknownNameNamesTheNearestAndAll) {
  Code code = Code::ok;
  auto const error = [&](std::string const& name) {
    return testing::error_of(
        [&] {
          static_cast<void>(registry_.make_compressor({name, {}}));
        },
        &code);
  };

  EXPECT_EQ(error("Int-8"),
            "no compressor 'Int-8'; did you mean 'int8'? This build has: bf16, int8");
  EXPECT_EQ(code, Code::unknown_name);
  EXPECT_EQ(error("quantum"), "no compressor 'quantum'; this build has: bf16, int8");
}

TEST_F(RegistryTest, TheListMayHoldSeveralKinds) {
  PluginKind const kinds[] = {PluginKind::compressor, PluginKind::sparsifier};

  EXPECT_EQ(testing::error_of([&] { throw_wrong_plugin(registry_, "topK", kinds); }),
            "no compressor 'topK'; did you mean 'topk'? This build has: bf16, int8, topk");
}

TEST_F(RegistryTest, ANameOfAnotherKindIsExplained) {
  Code code = Code::ok;

  EXPECT_EQ(testing::error_of(
                [&] {
                  static_cast<void>(registry_.make_index_codec({"int8", {}}));
                },
                &code),
            "'int8' is a compressor and cannot stand where an index codec is expected");
  EXPECT_EQ(code, Code::invalid_argument);
  EXPECT_EQ(testing::error_of([&] {
              static_cast<void>(registry_.make_feedback({"zstd", {}}));
            }),
            "'zstd' is a byte codec and cannot stand where a kind of feedback is expected");
}

TEST_F(RegistryTest, FeedbackMayShareANameWithAStage) {
  registry_.add({.name = "bf16", .kind = PluginKind::feedback},
                Registry::FeedbackFactory([](Params const&) { return FeedbackOptions{}; }));

  EXPECT_FALSE(registry_.make_feedback({"bf16", {}}).enabled);
  EXPECT_EQ(registry_.find("bf16")->kind, PluginKind::compressor);
  EXPECT_EQ(registry_.find("residual"), nullptr);
  EXPECT_EQ(testing::error_of([&] {
              static_cast<void>(registry_.make_compressor({"residual", {}}));
            }),
            "'residual' is a kind of feedback and cannot stand where a compressor is expected");
}

TEST_F(RegistryTest, MakingChecksTheArguments) {
  EXPECT_THROW(static_cast<void>(registry_.make_compressor({"int8", {{"block", "0"}}})), Error);
}

TEST_F(RegistryTest, RefusesATakenName) {
  EXPECT_EQ(refusal({.name = "int8", .payload_id = 99}), "plug-in 'int8': the name is taken");
  EXPECT_EQ(refusal({.name = "topk"}), "plug-in 'topk': the name is taken");
}

TEST_F(RegistryTest, RefusesATakenPayloadIdWithinItsKind) {
  EXPECT_EQ(refusal({.name = "other", .payload_id = 4}),
            "plug-in 'other': payload id 4 is taken by 'int8'");

  registry_.add({.name = "squeeze", .kind = PluginKind::byte_codec, .payload_id = 4},
                testing::fake_byte_codec());
  registry_.add({.name = "plain"}, testing::fake_compressor());
  registry_.add({.name = "plainer"}, testing::fake_compressor());
  EXPECT_EQ(registry_.find_payload_id(4)->name, "int8");
}

TEST_F(RegistryTest, RefusesWrongDeclarations) {
  EXPECT_EQ(refusal({.name = "Bad"}), "plug-in 'Bad': the name must be [a-z][a-z0-9_]*");
  EXPECT_EQ(refusal({.name = ""}), "plug-in '': the name must be [a-z][a-z0-9_]*");
  EXPECT_EQ(refusal({.name = "x", .kind = PluginKind::sparsifier}),
            "plug-in 'x': the factory does not make a sparsifier");
  EXPECT_EQ(refusal({.name = "x",
                     .params = {{.name = "a", .default_value = "1"},
                                {.name = "a", .default_value = "1"}}}),
            "plug-in 'x': parameter 'a' is declared twice");
  EXPECT_EQ(refusal({.name = "x", .positional = "a"}),
            "plug-in 'x': the positional parameter 'a' is not declared");
  EXPECT_EQ(refusal({.name = "x", .params = {{.name = "a", .default_value = "2", .max = 1.0}}}),
            "plug-in 'x': a default value is not valid (x: a=2 is out of range: expected a number "
            "of at most 1)");
}

TEST_F(RegistryTest, ARefusedPluginLeavesNoTrace) {
  std::size_t const before = registry_.plugins().size();

  refusal({.name = "other", .payload_id = 4});

  EXPECT_EQ(registry_.plugins().size(), before);
  EXPECT_EQ(registry_.find("other"), nullptr);
}

TEST(Nearest, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("topk", "tok"), 1U);
  EXPECT_EQ(edit_distance("topk", "tpok"), 1U);
  EXPECT_EQ(edit_distance("topk", "tipk"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
}

TEST(Nearest, OffersNothingThatIsFarAway) {
  EXPECT_EQ(nearest("topk", {"bf16", "int8"}), "");
  EXPECT_EQ(nearest("x", {"y"}), "");
  EXPECT_EQ(nearest(std::string(100000, 'a'), {"aa"}), "");
  EXPECT_EQ(nearest("", {"a"}), "");
}

TEST(Nearest, OffersTheOneThatBeginsWithIt) {
  EXPECT_EQ(nearest("dens", {"hold", "density"}), "density");
  EXPECT_EQ(nearest("Top-K", {"block", "topk"}), "topk");
}

}  // namespace
}  // namespace gradsieve
