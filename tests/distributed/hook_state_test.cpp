// SPDX-License-Identifier: Apache-2.0
// State on disk: stop and resume, a change of world size, files that are damaged or missing.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>

#include <gtest/gtest.h>

#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

std::string state_path(std::string const& name, int rank) {
  return ::testing::TempDir() + "hook_state_" + name + "_" + std::to_string(rank) + ".gsvstate";
}

std::vector<std::string> state_paths(std::string const& name, int world_size) {
  std::vector<std::string> paths;
  for (int rank = 0; rank < world_size; ++rank) paths.push_back(state_path(name, rank));
  return paths;
}

void remove_all(std::vector<std::string> const& paths) {
  for (std::string const& path : paths) std::remove(path.c_str());
}

struct ResumeCase {
  std::string name;
  std::string spec;
  Rollback rollback = Rollback::merge;
};
void PrintTo(ResumeCase const& c, std::ostream* out) { *out << c.spec; }

class HookResume : public ::testing::TestWithParam<ResumeCase> {
 protected:
  static HookOptions options() {
    HookOptions options = options_for(GetParam().spec);
    options.rollback = GetParam().rollback;
    return options;
  }
  static Layout layout() { return one_bucket_each({1500, 200, 1}); }
};

TEST_P(HookResume, C66StopAndResumeEqualsUninterruptedBitForBit) {
  constexpr int kWorldSize = 2;
  constexpr std::uint64_t kStop = 9;
  constexpr std::uint64_t kEnd = 20;
  std::vector<std::string> const paths = state_paths(GetParam().name, kWorldSize);
  std::vector<std::vector<std::vector<std::uint32_t>>> expected(kWorldSize);
  std::vector<std::vector<std::vector<float>>> residuals(kWorldSize);

  test::run_ranks(kWorldSize, [&](Transport& transport) {
    auto const me = static_cast<std::size_t>(transport.rank());
    HookRank rank(transport, options(), layout());
    for (std::uint64_t step = 0; step < kEnd; ++step) {
      if (step == kStop) rank.hook().export_state(paths[me]);
      rank.step(step);
      if (step >= kStop) expected[me].push_back(bits_of(rank.all_results()));
    }
    residuals[me] = rank.all_residuals();
  });
  test::run_ranks(kWorldSize, [&](Transport& transport) {
    auto const me = static_cast<std::size_t>(transport.rank());
    HookRank rank(transport, options(), layout());
    rank.hook().import_state(std::span(&paths[me], 1));
    for (std::uint64_t step = kStop; step < kEnd; ++step) {
      rank.step(step);
      ASSERT_EQ(bits_of(rank.all_results()), expected[me][step - kStop]) << "step " << step;
    }
    EXPECT_EQ(rank.all_residuals(), residuals[me]);
  });
  remove_all(paths);
}

INSTANTIATE_TEST_SUITE_P(
    Specs, HookResume,
    ::testing::Values(
        ResumeCase{"topk", "topk(density=0.1) ; feedback=residual"},
        ResumeCase{"topk_exact", "topk(density=0.1) ; feedback=residual", Rollback::exact},
        ResumeCase{"topk_int8_stochastic",
                   "topk(density=0.05) | int8(rounding=stochastic) ; feedback=residual"},
        ResumeCase{"topk_decay", "topk(density=0.05) ; feedback=residual(decay=0.9)"},
        ResumeCase{"topk_bf16_residual", "topk(density=0.05) ; feedback=residual(dtype=bf16)"},
        ResumeCase{"randomk_hold", "randomk(density=0.05, hold=4) ; feedback=residual"},
        ResumeCase{"cltk", "cltk(density=0.05) ; feedback=residual"},
        ResumeCase{"cltk_hold", "cltk(density=0.05, hold=5) ; feedback=residual"},
        ResumeCase{"ramp", "topk(density=0.01, warmup_steps=15) ; feedback=residual"},
        ResumeCase{"int4_two_shot", "int4 ; feedback=residual ; exchange=two_shot"},
        ResumeCase{"sign", "sign ; feedback=residual"}),
    [](auto const& c) { return c.param.name; });

/// Sum over ranks of every residual, in double.
class ResidualSum {
 public:
  void add(std::vector<std::vector<float>> const& residuals) {
    std::lock_guard const lock(mutex_);
    sums_.resize(residuals.size());
    magnitudes_.resize(residuals.size());
    for (std::size_t t = 0; t < residuals.size(); ++t) {
      sums_[t].resize(residuals[t].size());
      magnitudes_[t].resize(residuals[t].size());
      for (std::size_t i = 0; i < residuals[t].size(); ++i) {
        sums_[t][i] += residuals[t][i];
        magnitudes_[t][i] += std::abs(double{residuals[t][i]});
      }
    }
  }
  void expect_equal(ResidualSum const& other) const {
    ASSERT_EQ(sums_.size(), other.sums_.size());
    double total = 0.0;
    for (std::size_t t = 0; t < sums_.size(); ++t) {
      for (std::size_t i = 0; i < sums_[t].size(); ++i) {
        // At most world_size − 1 = 3 additions in f32.
        ASSERT_NEAR(sums_[t][i], other.sums_[t][i], 3 * 0x1p-24 * other.magnitudes_[t][i])
            << "element " << i;
        total += magnitudes_[t][i];
      }
    }
    EXPECT_GT(total, 0.0) << "nothing was kept, so nothing was tested";
  }

 private:
  std::mutex mutex_;
  std::vector<std::vector<double>> sums_;
  std::vector<std::vector<double>> magnitudes_;
};

TEST(HookWorldChange, FourToTwoToThreeRanksConservesTheSumOfResiduals) {
  for (char const* spec :
       {"topk(density=0.02) ; feedback=residual", "cltk(density=0.02, hold=3) ; feedback=residual",
        "int4 ; feedback=residual ; exchange=two_shot",
        "topk(density=0.02) ; feedback=residual(dtype=bf16)"}) {
    SCOPED_TRACE(spec);
    bool const is_bf16 = std::string(spec).find("bf16") != std::string::npos;
    std::vector<int> const worlds = {4, 2, 3};
    std::uint64_t step = 0;
    std::unique_ptr<ResidualSum> exported;
    for (std::size_t phase = 0; phase < worlds.size(); ++phase) {
      ResidualSum imported;
      auto now = std::make_unique<ResidualSum>();
      std::vector<std::string> const old =
          phase == 0 ? std::vector<std::string>{}
                     : state_paths("world" + std::to_string(phase - 1), worlds[phase - 1]);
      test::run_ranks(worlds[phase], [&](Transport& transport) {
        HookRank rank(transport, options_for(spec), one_bucket_each({2000, 77}));
        if (phase != 0) {
          rank.hook().import_state(old, OnWorldChange::redistribute);
          imported.add(rank.all_residuals());
        }
        for (std::uint64_t s = step; s < step + 8; ++s) rank.step(s);
        now->add(rank.all_residuals());
        rank.hook().export_state(state_path("world" + std::to_string(phase), transport.rank()));
      });
      // A residual stored in bf16 is rounded stochastically: conserved in expectation only.
      if (phase != 0 && !is_bf16) imported.expect_equal(*exported);
      exported = std::move(now);
      step += 8;
      remove_all(old);
    }
    remove_all(state_paths("world2", 3));
  }
}

TEST(HookWorldChange, IsAnErrorUnlessItWasAskedFor) {
  std::vector<std::string> const paths = state_paths("asked", 2);
  test::run_ranks(2, [&](Transport& transport) {
    HookRank rank(transport, options_for("topk(density=0.02) ; feedback=residual"),
                  one_bucket_each({500}));
    for (std::uint64_t step = 0; step < 6; ++step) rank.step(step);
    rank.hook().export_state(paths[static_cast<std::size_t>(transport.rank())]);
  });
  test::run_ranks(3, [&](Transport& transport) {
    HookRank rank(transport, options_for("topk(density=0.02) ; feedback=residual"),
                  one_bucket_each({500}));
    EXPECT_THROW(rank.hook().import_state(paths), Error);
    rank.hook().import_state(paths, OnWorldChange::reset);
    for (float const x : rank.hook().residual("t0")) ASSERT_EQ(x, 0.0F);
    for (std::uint64_t step = 6; step < 12; ++step) rank.step(step);
  });
  remove_all(paths);
}

// Case C-67: the divisor is that of the live group, and no residual of a rank that left is applied
// to another rank unasked.
TEST(HookWorldChange, C67TheDivisorIsTheLiveWorldSize) {
  auto const three_six_nine = [](int rank, std::uint64_t, std::string const&, std::uint64_t count) {
    return std::vector<float>(count, 3.0F * static_cast<float>(rank + 1));
  };
  test::run_ranks(4, [&](Transport& transport) {
    HookRank rank(transport, options_for("none"), one_bucket_each({100}));
    for (std::uint64_t step = 0; step < 2; ++step) {
      rank.step(step, three_six_nine);
      for (float const x : rank.bucket(0)) ASSERT_EQ(x, 7.5F);
    }
  });
  test::run_ranks(3, [&](Transport& transport) {
    HookOptions options = options_for("none");
    options.epoch = 1;
    HookRank rank(transport, options, one_bucket_each({100}));
    for (std::uint64_t step = 2; step < 8; ++step) {
      rank.step(step, three_six_nine);
      for (float const x : rank.bucket(0)) ASSERT_EQ(x, 6.0F) << "4.5 is a stale divisor";
    }
  });
}

class HookStateFile : public ::testing::Test {
 protected:
  void SetUp() override {
    test::run_ranks(1, [&](Transport& transport) {
      HookRank rank(transport, options_for(spec_), one_bucket_each({400, 30}));
      for (std::uint64_t step = 0; step < 6; ++step) rank.step(step);
      rank.hook().export_state(path_);
    });
    std::ifstream file(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    ASSERT_GT(bytes_.size(), 430 * sizeof(float));
  }
  void TearDown() override { std::remove(path_.c_str()); }

  /// The code that importing these bytes ends with; state must not have changed on an error.
  Code import_of(std::string const& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    Code code = Code::ok;
    test::run_ranks(1, [&](Transport& transport) {
      HookRank rank(transport, options_for(spec_), one_bucket_each({400, 30}));
      rank.step(0);
      auto const before = rank.all_residuals();
      try {
        rank.hook().import_state(std::span(&path_, 1));
      } catch (Error const& error) {
        code = error.code();
        EXPECT_GE(std::string(error.what()).size(), 20u) << "an error is a sentence";
        EXPECT_EQ(rank.all_residuals(), before) << "half imported";
      }
    });
    return code;
  }

  std::string spec_ = "topk(density=0.05) ; feedback=residual";
  std::string path_ = state_path("file", 0);
  std::string bytes_;
};

TEST_F(HookStateFile, IsRefusedWhenTruncatedOrFlippedAnywhere) {
  EXPECT_EQ(import_of(bytes_), Code::ok);
  for (std::size_t length = 0; length < bytes_.size(); length += 97) {
    EXPECT_NE(import_of(bytes_.substr(0, length)), Code::ok) << "cut to " << length;
  }
  for (std::size_t at = 0; at < bytes_.size(); at += 61) {
    std::string flipped = bytes_;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    EXPECT_NE(import_of(flipped), Code::ok) << "byte " << at;
  }
}

TEST_F(HookStateFile, AMissingFileAndAnUnwritableOneAreIoErrors) {
  test::run_ranks(1, [&](Transport& transport) {
    HookRank rank(transport, options_for(spec_), one_bucket_each({400, 30}));
    std::string const missing = path_ + ".missing";
    try {
      rank.hook().import_state(std::span(&missing, 1));
      ADD_FAILURE() << "imported a file that is not there";
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), Code::io_error);
    }
    try {
      rank.hook().export_state(::testing::TempDir() + "no/such/folder/state");
      ADD_FAILURE() << "exported to a folder that is not there";
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), Code::io_error);
    }
  });
}

TEST_F(HookStateFile, AnotherModelsStateIsRefused) {
  test::run_ranks(1, [&](Transport& transport) {
    HookRank rank(transport, options_for(spec_), one_bucket_each({400, 31}));
    EXPECT_THROW(rank.hook().import_state(std::span(&path_, 1)), Error);
  });
}

}  // namespace
}  // namespace gradsieve::testing
