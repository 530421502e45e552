// SPDX-License-Identifier: Apache-2.0
// Faults of one rank of an MPI job that go away again: a link that crawls, a disk without room. No
// rank ends another way than the others, and all go on.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <mpi.h>
#include <unistd.h>

#include "tests/faults/changing_link.hpp"
#include "tests/faults/expected_run.hpp"
#include "tests/support/ledger.hpp"
#include "tests/support/mpi_runner.hpp"

namespace gradsieve::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kElements = 700;

/// Every rank keeps the books of all: it can compute what they bring.
void expect_balance(Ledger& ledger, HookRank& rank, int world_size) {
  std::vector<float> const own = rank.hook().residual("t0");
  std::vector<float> all(own.size() * static_cast<std::size_t>(world_size));
  int const count = static_cast<int>(own.size());
  MPI_Allgather(own.data(), count, MPI_FLOAT, all.data(), count, MPI_FLOAT, MPI_COMM_WORLD);
  for (auto at = all.begin(); at != all.end(); at += count) ledger.keep({at, at + count});
  ledger.expect_balance(true);  // top-k sends what it keeps as it is
}

class StepFault : public ::testing::TestWithParam<Rollback> {};

TEST_P(StepFault, ACrawlingLinkEndsTheStepInTheSameWayOnAllRanks) {
  test::run_mpi_rank([](Transport& mpi) {
    int const world_size = mpi.world_size();
    int const slow_rank = world_size - 1;
    ChangingLink link(mpi);
    HookOptions options = options_for("topk(density=0.05) ; feedback=residual");
    options.rollback = GetParam();
    // Steps without a fault must count: longer than a busy machine holds a rank up.
    options.exchange_deadline = std::chrono::milliseconds(4000);
    options.vote_deadline = std::chrono::milliseconds(12'000);
    HookRank rank(link, options, one_bucket_each({kElements, 30}));
    Ledger ledger(kElements, world_size);
    for (std::uint64_t step = 0; step < 12; ++step) {
      bool const is_slow = step == 4 || step == 7;
      link.crawl(is_slow && mpi.rank() == slow_rank);
      Residuals const before = rank.all_residuals();
      HookRank::Attempt const attempt = rank.attempt(step, heavy_tailed_of);
      ASSERT_TRUE(attempt.begun.ok()) << attempt.begun.message();
      ASSERT_EQ(attempt.result.committed, !is_slow)
          << "step " << step << ": " << attempt.result.status.message();
      for (int r = 0; r < world_size && (!is_slow || GetParam() == Rollback::merge); ++r)
        ledger.give(heavy_tailed_of(r, step, "t0", kElements));
      if (!is_slow) {
        ledger.get(rank.result_of("t0"));
        continue;
      }
      Failure const failure = rank.hook().failure();
      EXPECT_TRUE(failure.code == Code::timeout || failure.code == Code::peer_failed)
          << code_name(failure.code);
      if (mpi.rank() != slow_rank) {
        EXPECT_EQ(failure.rank, slow_rank);
      }
      EXPECT_EQ(compare_after_rollback(rank, GetParam(), before, step, heavy_tailed_of), "");
    }
    expect_balance(ledger, rank, world_size);
  });
}

// /dev/full takes no byte: write() says ENOSPC.
TEST_P(StepFault, AFullDiskOfOneRankStopsNobody) {
  test::run_mpi_rank([](Transport& mpi) {
    int const world_size = mpi.world_size();
    fs::path const folder =
        fs::temp_directory_path() / ("gsv_step_fault." + std::to_string(::getpid()));
    fs::create_directory(folder);
    fs::path const state = folder / "state";
    HookOptions options = options_for("topk(density=0.05) ; feedback=residual");
    options.rollback = GetParam();
    HookRank rank(mpi, options, one_bucket_each({kElements, 30}));
    Ledger ledger(kElements, world_size);
    std::string good;
    for (std::uint64_t step = 0; step < 12; ++step) {
      rank.step(step);
      for (int r = 0; r < world_size; ++r) ledger.give(heavy_tailed_of(r, step, "t0", kElements));
      ledger.get(rank.result_of("t0"));
      bool const is_full = step == 6 && mpi.rank() == 0;
      if (is_full) fs::create_symlink("/dev/full", state.string() + ".partial");
      Residuals const before = rank.all_residuals();
      auto const content = [&] {
        std::ifstream file(state, std::ios::binary);
        return std::string(std::istreambuf_iterator<char>(file), {});
      };
      if (is_full) {
        try {
          rank.hook().export_state(state.string());
          ADD_FAILURE() << "state was exported to a disk without room";
        } catch (Error const& error) {
          EXPECT_EQ(error.code(), Code::io_error) << error.what();
        }
        EXPECT_EQ(content(), good) << "the file of before";
        EXPECT_EQ(compare_exactly(rank.all_residuals(), before), "");
        continue;
      }
      rank.hook().export_state(state.string());
      good = content();
      EXPECT_FALSE(good.empty());
    }
    expect_balance(ledger, rank, world_size);
    fs::remove_all(folder);
  });
}

INSTANTIATE_TEST_SUITE_P(Rollbacks, StepFault, ::testing::Values(Rollback::merge, Rollback::exact),
                         [](auto const& c) {
                           return c.param == Rollback::merge ? "merge" : "exact";
                         });

}  // namespace
}  // namespace gradsieve::testing
