// SPDX-License-Identifier: Apache-2.0
// What a hook writes down for people: timeline, metrics, debug lines; and the dense path for
// comparison. A program of its own, because debug settings are read once.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

namespace fs = std::filesystem;

/// Set before anything of the library looks at it.
fs::path const kDebugFile = [] {
  fs::path const file =
      fs::temp_directory_path() / ("gradsieve_observer_debug." + std::to_string(::getpid()));
  ::setenv("GRADSIEVE_DEBUG", "TRACE", 1);
  ::setenv("GRADSIEVE_DEBUG_SUBSYS", "^EF", 1);
  ::setenv("GRADSIEVE_DEBUG_FILE",
           (fs::temp_directory_path() / "gradsieve_observer_debug.%p").c_str(), 1);
  return file;
}();

class Variable {
 public:
  Variable(char const* name, std::string const& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_); }
  Variable(Variable const&) = delete;
  Variable& operator=(Variable const&) = delete;

 private:
  char const* name_;
};

class ObserverTest : public ::testing::Test {
 protected:
  ObserverTest() {
    folder_ = fs::temp_directory_path() / ("gradsieve_observer." + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  ~ObserverTest() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string in_folder(std::string const& name) const { return folder_ / name; }
  [[nodiscard]] std::string text_of(std::string const& name) const {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  fs::path folder_;
};

constexpr int kSteps = 7;
constexpr char kSpec[] = "topk(density=0.05) | int8 ; feedback=residual";

void train(int world_size) {
  test::run_ranks(world_size, [](Transport& transport) {
    HookRank rank(transport, options_for(kSpec), one_bucket_each({3000, 500}));
    for (std::uint64_t step = 0; step < kSteps; ++step) rank.step(step);
  });
}

TEST_F(ObserverTest, TheTimelineHasEveryRangeOfEveryBucket) {
  {
    Variable const asked("GRADSIEVE_TIMELINE", in_folder("trace-%r.json"));
    train(3);
  }
  for (int rank = 0; rank < 3; ++rank) {
    std::string const text = text_of("trace-" + std::to_string(rank) + ".json");
    auto const events = nlohmann::json::parse(text + "\n]");
    std::map<std::pair<std::string, int>, int> counts;
    std::map<std::pair<std::string, int>, double> bytes;
    for (auto const& event : events) {
      EXPECT_EQ(event.at("pid"), rank);
      if (event.at("ph") != "X") continue;
      EXPECT_GE(event.at("dur"), 0.0);
      std::pair<std::string, int> const key = {event.at("name"), event.at("tid")};
      ++counts[key];
      bytes[key] += event.at("args").at("bytes").get<double>();
    }
    for (int bucket = 0; bucket < 2; ++bucket) {
      EXPECT_EQ((counts[{"encode", bucket}]), kSteps);
      EXPECT_EQ((counts[{"exchange", bucket}]), kSteps);
      EXPECT_EQ((counts[{"decode", bucket}]), kSteps * 3) << "one payload a rank";
      EXPECT_EQ((bytes[{"exchange", bucket}]), 2 * bytes[std::pair("encode", bucket)])
          << "every payload goes to two others";
    }
    EXPECT_EQ((counts[{"vote", 2}]), kSteps);
  }
}

TEST_F(ObserverTest, MetricsHaveALinePerStep) {
  {
    Variable const asked("GRADSIEVE_METRICS", in_folder("metrics-%r.jsonl"));
    train(2);
  }
  for (int rank = 0; rank < 2; ++rank) {
    std::ifstream file(in_folder("metrics-" + std::to_string(rank) + ".jsonl"));
    std::string line;
    double norm_before = 0.0;
    for (int step = 0; step < kSteps; ++step) {
      ASSERT_TRUE(std::getline(file, line)) << "step " << step;
      auto const record = nlohmann::json::parse(line);
      EXPECT_EQ(record.at("step"), step);
      EXPECT_EQ(record.at("rank"), rank);
      EXPECT_EQ(record.at("committed"), true);
      EXPECT_EQ(record.at("result"), "ok");
      EXPECT_EQ(record.at("dense_bytes"), 4 * 3500);
      EXPECT_EQ(record.at("kept_elements"), 175);
      EXPECT_GT(record.at("wire_bytes"), 175);
      EXPECT_LT(record.at("wire_bytes"), 1000);
      for (char const* const time : {"t_encode", "t_exchange", "t_decode"})
        EXPECT_GT(record.at(time), 0.0) << time;
      for (char const* const time : {"t_encode_cpu", "t_decode_cpu"})
        EXPECT_GT(record.at(time), 0.0) << time;
      EXPECT_GT(record.at("residual_norm"), 0.0);
      EXPECT_NE(record.at("residual_norm"), norm_before);
      norm_before = record.at("residual_norm");
    }
    EXPECT_FALSE(std::getline(file, line));
  }
}

TEST_F(ObserverTest, AFileThatCannotBeWrittenIsAnErrorWithASentence) {
  Variable const asked("GRADSIEVE_METRICS", "/nowhere/metrics-%r.jsonl");
  LocalGroup group(1);
  try {
    Hook hook(group.transport(0), options_for("none"));
    FAIL() << "expected an error";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), Code::io_error);
    EXPECT_NE(std::string(error.what()).find("GRADSIEVE_METRICS='/nowhere/metrics-0.jsonl'"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(ObserverTest, DisableIsTheDensePathBitForBit) {
  std::vector<float> dense;
  std::vector<float> disabled;
  auto const run = [](std::string const& spec, std::vector<float>& results) {
    test::run_ranks(3, [&](Transport& transport) {
      HookRank rank(transport, options_for(spec), one_bucket_each({3000, 500}));
      for (std::uint64_t step = 0; step < kSteps; ++step) rank.step(step);
      if (transport.rank() == 0) results = rank.all_results();
      EXPECT_EQ(rank.hook().bucket_stats()[0].exchange, "all_reduce");
    });
  };
  run("none", dense);
  Variable const off("GRADSIEVE_DISABLE", "1");
  run(kSpec, disabled);
  EXPECT_EQ(dense, disabled);
}

TEST_F(ObserverTest, DisableTakesNothingButZeroAndOne) {
  LocalGroup group(1);
  {
    Variable const off("GRADSIEVE_DISABLE", "0");
    Hook hook(group.transport(0), options_for(kSpec));
  }
  Variable const wrong("GRADSIEVE_DISABLE", "yes");
  EXPECT_THROW(Hook(group.transport(0), options_for(kSpec)), Error);
}

TEST_F(ObserverTest, DebugLinesNameTheRankAndLeaveOutWhatWasNotAskedFor) {
  train(2);
  std::ifstream file(kDebugFile);
  std::string const text{std::istreambuf_iterator<char>(file), {}};
  for (char const* const expected :
       {"[0] GRADSIEVE INFO rank 0 of 2 over local: 2 tensors in 2 buckets",
        "[1] GRADSIEVE INFO bucket 0: 3000 x f32, topk(density=0.05",
        "[1] GRADSIEVE TRACE step 6 committed"}) {
    EXPECT_NE(text.find(expected), std::string::npos) << expected;
  }
  EXPECT_EQ(text.find("residual in"), std::string::npos) << "^EF was asked for";
  fs::remove(kDebugFile);
}

}  // namespace
}  // namespace gradsieve::testing
