// SPDX-License-Identifier: Apache-2.0
// What goes wrong between ranks of NCCL ends with the right code, in time.
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "tests/nccl/nccl_ranks.hpp"

namespace gradsieve::testing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{600};
/// Long enough for the ranks that do come, on a busy machine.
constexpr milliseconds kMaking{2000};
/// Beyond the patience, on a busy machine; far below the library's own time-out.
constexpr milliseconds kSlack{20000};

class NcclFailures : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!has_devices(GetParam())) GTEST_SKIP() << "needs " << GetParam() << " devices";
  }
};

/// Sixteen bytes for all ranks, as a call to finish().
class Gather {
 public:
  explicit Gather(NcclRank& rank, std::size_t count = 16)
      : rank_(rank),
        own_(rank.step(), std::vector<std::byte>(count)),
        all_(rank.step(),
             std::vector<std::byte>(count * static_cast<std::size_t>(rank.world_size()))) {}

  [[nodiscard]] Status finish(milliseconds patience) {
    return testing::finish(rank_.exchange(), rank_.stream(), patience, [this] {
      return rank_.exchange().all_gather(rank_.stream(), own_.span(), all_.span());
    });
  }

 private:
  NcclRank& rank_;
  OnDevice<std::byte> own_;
  OnDevice<std::byte> all_;
};

TEST_P(NcclFailures, AMissingRankIsATimeout) {
  int const missing = GetParam() - 1;
  run_device_ranks(GetParam(), [&](Transport& host) {
    NcclRank rank(host, {.call_deadline = kPatience});
    Gather gather(rank);
    Deadline const begin = Clock::now();
    if (host.rank() == missing) {
      // It comes to know of the others' trouble without a call of its own.
      while (rank.exchange().check().ok() && Clock::now() - begin < kPatience + kSlack)
        std::this_thread::sleep_for(milliseconds(1));
      EXPECT_EQ(rank.exchange().check().code(), Code::peer_failed);
      return;
    }
    Code const code = gather.finish(kPatience).code();
    // Whoever is second may hear of the first one's abort() instead.
    EXPECT_TRUE(code == Code::timeout || code == Code::peer_failed) << code_name(code);
    rank.transport().abort();
    EXPECT_LT(Clock::now() - begin, kPatience + kSlack);
    Code const afterwards = rank.exchange().check().code();
    EXPECT_TRUE(afterwards == Code::aborted || afterwards == Code::timeout);
    rank.step().wait();  // nothing is left on the stream that would not end
  });
}

TEST_P(NcclFailures, AbortEndsWhatAnotherThreadWaitsFor) {
  run_device_ranks(GetParam(), [&](Transport& host) {
    NcclRank rank(host);
    Gather gather(rank);
    if (host.rank() != 0) {
      while (rank.exchange().check().ok()) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    Deadline const begin = Clock::now();
    std::thread aborting([&] {
      std::this_thread::sleep_for(milliseconds(200));
      rank.transport().abort();
    });
    EXPECT_EQ(gather.finish(milliseconds(20000)).code(), Code::aborted);
    aborting.join();
    EXPECT_LT(Clock::now() - begin, kSlack);
    EXPECT_EQ(rank.exchange().check().code(), Code::aborted);
    EXPECT_EQ(gather.finish(kPatience).code(), Code::aborted);
    Request request;
    EXPECT_EQ(rank.transport().send(Channel::data, 0, 1, {}, request).code(), Code::aborted);
    rank.step().wait();
  });
}

// Only the emulator compares the ranks' calls; it is told not to end the program for it.
class NcclFailuresKeepGoing : public NcclFailures {};
TEST_P(NcclFailuresKeepGoing, MismatchedSizesAreAMismatch) {
  std::atomic<int> num_mismatches{0};
  run_device_ranks(GetParam(), [&](Transport& host) {
    NcclRank rank(host);
    Gather gather(rank, host.rank() == 0 ? 32 : 16);
    Code const code = gather.finish(milliseconds(20000)).code();
    // A rank that asks early hears that another one has failed.
    EXPECT_TRUE(code == Code::mismatch || code == Code::peer_failed) << code_name(code);
    if (code == Code::mismatch) ++num_mismatches;
    rank.transport().abort();
  });
  EXPECT_GE(num_mismatches, 1);
}

TEST_P(NcclFailures, ARankThatDoesNotComeToTheMakingIsNamed) {
  int const missing = GetParam() - 1;
  run_device_ranks(GetParam(), [&](Transport& host) {
    if (host.rank() == missing) return;
    Deadline const begin = Clock::now();
    try {
      NcclRank const rank(host, {.deadline = kMaking});
      ADD_FAILURE() << "made without rank " << missing;
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), Code::timeout) << error.what();
      std::string const who = "rank " + std::to_string(missing) + " did not come";
      EXPECT_NE(std::string(error.what()).find(who), std::string::npos) << error.what();
    }
    EXPECT_LT(Clock::now() - begin, kMaking + kSlack);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclFailures, ::testing::Values(2, 3, 4));
INSTANTIATE_TEST_SUITE_P(Ranks, NcclFailuresKeepGoing, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace gradsieve::testing
