// SPDX-License-Identifier: Apache-2.0
// A disk that is full when state is exported: an error with the disk's own reason, the file of
// before untouched, nothing left behind, and training goes on.
#include <csignal>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/faults/expected_run.hpp"

namespace gradsieve::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string content_of(fs::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class DiskFault : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("gsv_disk_fault." + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// Exports, breaks the disk, exports again, mends it.
  void expect_kept(std::function<void()> const& break_disk, std::function<void()> const& mend,
                   std::string const& reason) {
    fs::path const path = folder_ / "state";
    test::run_ranks(1, [&](Transport& transport) {
      HookRank rank(transport, options_for("topk(density=0.01) ; feedback=residual"),
                    one_bucket_each({30'000}));
      for (std::uint64_t step = 0; step < 3; ++step) rank.step(step);
      rank.hook().export_state(path.string());
      std::string const good = content_of(path);
      for (std::uint64_t step = 3; step < 6; ++step) rank.step(step);
      Residuals const before = rank.all_residuals();

      break_disk();
      try {
        rank.hook().export_state(path.string());
        ADD_FAILURE() << "state was exported to a disk without room";
      } catch (Error const& error) {
        EXPECT_EQ(error.code(), Code::io_error);
        EXPECT_THAT(error.what(), HasSubstr(reason));
        EXPECT_THAT(error.what(), HasSubstr(path.string()));
      }
      mend();

      EXPECT_EQ(content_of(path), good) << "the file of before";
      EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1)
          << "something is left behind";
      EXPECT_EQ(compare_exactly(rank.all_residuals(), before), "");
      rank.step(6);
      rank.hook().export_state(path.string());
      EXPECT_NE(content_of(path), good);
    });
  }

  fs::path folder_;
};

// /dev/full takes no byte: write() says ENOSPC.
TEST_F(DiskFault, AFullDiskLeavesTheFileOfBefore) {
  expect_kept([&] { fs::create_symlink("/dev/full", folder_ / "state.partial"); }, [] {},
              "No space left on device");
}

// The limit lies in the middle of the file: write() takes a part of it first.
TEST_F(DiskFault, ADiskThatFillsUpInTheMiddleLeavesTheFileOfBefore) {
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  auto const old_handler = std::signal(SIGXFSZ, SIG_IGN);
  expect_kept(
      [&] {
        struct rlimit small = before;
        small.rlim_cur = 50'000;
        ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
      },
      [&] { ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0); }, "File too large");
  std::signal(SIGXFSZ, old_handler);
}

}  // namespace
}  // namespace gradsieve::testing
