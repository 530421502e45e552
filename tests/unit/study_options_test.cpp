// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bench/convergence/options.hpp"

namespace gradsieve::study {
namespace {

ParsedCommandLine parse(std::vector<char const*> arguments) {
  arguments.insert(arguments.begin(), "gradsieve-study");
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  ParsedCommandLine parsed =
      parse_command_line(static_cast<int>(arguments.size()), arguments.data());
  testing::internal::GetCapturedStdout();
  testing::internal::GetCapturedStderr();
  return parsed;
}

using Seeds = std::vector<std::uint64_t>;

TEST(StudyOptions, TakesSeedsAsACountOrAList) {
  EXPECT_EQ(parse_seeds("3"), (Seeds{1, 2, 3}));
  EXPECT_EQ(parse_seeds("4,9"), (Seeds{4, 9}));
  EXPECT_EQ(parse_seeds("7,"), (Seeds{7}));
  for (char const* text : {"", "0", "-1", "1.5", "a", ",", "1,,2", "2000", "1,x"})
    EXPECT_THROW(static_cast<void>(parse_seeds(text)), UsageError) << text;
}

TEST(StudyOptions, TakesALimitWithUnits) {
  LinkRequest const limit = parse_limit("1Gbit/s,50us");

  EXPECT_EQ(limit.bits_per_s, 1e9);
  EXPECT_EQ(limit.latency_us, 50.0);
  EXPECT_EQ(parse_limit("0,2ms").latency_us, 2000.0);
  EXPECT_EQ(parse_limit("100Mbit/s").bits_per_s, 1e8);
  for (char const* text : {"fast", "1GB/s", "1Gbit/s,", "-1", "nan", "1,2,3"})
    EXPECT_THROW(static_cast<void>(parse_limit(text)), UsageError) << text;
}

TEST(StudyOptions, FillsInWhatTheModelTrainsWellWith) {
  auto const plan = parse({"train", "--model", "transformer"}).plan;

  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->trainings.front().optimizer, OptimizerKind::adamw);
  EXPECT_EQ(plan->trainings.front().num_steps, 1000u);
  EXPECT_EQ(plan->run_folder, "runs/transformer");
}

TEST(StudyOptions, AddsASpecPerDensity) {
  auto const plan = parse({"train", "--model", "mlp", "--spec", "none", "--density", "0.001"}).plan;

  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->trainings.front().specs,
            (std::vector<std::string>{"none", "topk(density=0.001) | int8 ; feedback=residual"}));
}

TEST(StudyOptions, EndsWithTwoWhereTheCommandLineIsWrong) {
  EXPECT_EQ(parse({}).exit_code, 2);
  EXPECT_EQ(parse({"train"}).exit_code, 2);
  EXPECT_EQ(parse({"train", "--model", "resnet"}).exit_code, 2);
  EXPECT_EQ(parse({"train", "--model", "mlp", "--spec", "topK(density=0.01)"}).exit_code, 2);
  EXPECT_EQ(parse({"train", "--model", "mlp", "--density", "0"}).exit_code, 2);
  EXPECT_EQ(parse({"train", "--model", "mlp", "--epochs", "1", "--steps", "5"}).exit_code, 2);
  EXPECT_EQ(parse({"train", "--model", "mlp", "--seeds", "0"}).exit_code, 2);
}

TEST(StudyOptions, EndsWithZeroAfterHelp) {
  ParsedCommandLine const parsed = parse({"train", "--help"});

  EXPECT_FALSE(parsed.plan.has_value());
  EXPECT_EQ(parsed.exit_code, 0);
}

}  // namespace
}  // namespace gradsieve::study
