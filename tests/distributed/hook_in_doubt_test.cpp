// SPDX-License-Identifier: Apache-2.0
// The vote that not everybody hears: in_doubt on the rank that did not, and recover() ends it the
// same way everywhere.
#include <algorithm>
#include <array>
#include <barrier>
#include <memory>

#include <gtest/gtest.h>

#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"
#include "tests/support/test_transports.hpp"

namespace gradsieve::testing {
namespace {

constexpr int kWorldSize = 3;
constexpr std::uint64_t kDoubtfulStep = 5;

struct DoubtCase {
  std::string name;
  std::string spec;
  Rollback rollback;
  std::function<bool(int from, int to)> lost;  ///< votes that do not arrive
  std::array<bool, kWorldSize> in_doubt;       ///< per rank
};
void PrintTo(DoubtCase const& c, std::ostream* out) { *out << c.name; }

class HookInDoubt : public ::testing::TestWithParam<DoubtCase> {
 protected:
  static HookOptions options() {
    HookOptions options = options_for(GetParam().spec);
    options.rollback = GetParam().rollback;
    options.exchange_deadline = std::chrono::milliseconds(400);
    options.vote_deadline = std::chrono::milliseconds(800);
    return options;
  }
};

TEST_P(HookInDoubt, RecoverEndsAsIfNothingHadBeenLost) {
  DoubtCase const& doubt = GetParam();
  LocalGroup rebuilt(kWorldSize);
  std::barrier all(kWorldSize);
  test::run_ranks(kWorldSize, [&](Transport& inner) {
    int const me = inner.rank();
    LossyTransport transport(inner, Channel::control, [&](int to) { return doubt.lost(me, to); });
    Layout const layout = one_bucket_each({900, 50});
    // What should have come out, on a group that loses nothing.
    std::vector<std::vector<std::uint32_t>> expected;
    {
      HookRank rank(inner, options(), layout);
      for (std::uint64_t step = 0; step < kDoubtfulStep + 6; ++step) {
        rank.step(step);
        expected.push_back(bits_of(rank.all_results()));
      }
    }
    HookRank rank(transport, options(), layout);
    for (std::uint64_t step = 0; step < kDoubtfulStep; ++step) rank.step(step);
    all.arrive_and_wait();

    ASSERT_TRUE(rank.hook().begin(kDoubtfulStep).ok());
    rank.fill(kDoubtfulStep, heavy_tailed_of);
    ASSERT_TRUE(rank.reduce_all().ok());
    all.arrive_and_wait();
    transport.arm(true);
    StepResult const result = rank.hook().finish();
    all.arrive_and_wait();
    transport.arm(false);

    if (doubt.in_doubt[static_cast<std::size_t>(me)]) {
      EXPECT_EQ(result.status.code(), Code::in_doubt) << result.status.message();
      EXPECT_FALSE(result.committed);
      EXPECT_EQ(rank.hook().failure().code, Code::in_doubt);
      EXPECT_FALSE(rank.hook().begin(kDoubtfulStep + 1).ok()) << "a doubt is not forgotten";
    } else {
      EXPECT_TRUE(result.committed);
    }
    all.arrive_and_wait();
    Status const recovered = rank.hook().recover(rebuilt.transport(me));
    ASSERT_TRUE(recovered.ok()) << recovered.message();

    // All had voted for it, and one survivor at least had seen that: the step counts.
    bool const anybody_knew = std::ranges::count(doubt.in_doubt, false) != 0;
    if (anybody_knew) {
      EXPECT_EQ(bits_of(rank.all_results()), expected[kDoubtfulStep]) << "results stay";
    }
    for (std::uint64_t step = kDoubtfulStep + 1; step < kDoubtfulStep + 6; ++step) {
      rank.step(step);
      if (anybody_knew) {
        EXPECT_EQ(bits_of(rank.all_results()), expected[step]) << "step " << step;
      }
    }
  });
}

bool everybody(int, int) { return true; }
bool one_to_two(int from, int to) { return from == 1 && to == 2; }
bool one_to_all(int from, int) { return from == 1; }

constexpr char kTopk[] = "topk(density=0.02) ; feedback=residual";
constexpr char kInt8[] = "int8 ; feedback=residual ; exchange=two_shot";

INSTANTIATE_TEST_SUITE_P(
    Votes, HookInDoubt,
    ::testing::Values(
        DoubtCase{
            "one_vote_to_one_rank_merge", kTopk, Rollback::merge, one_to_two, {false, false, true}},
        DoubtCase{
            "one_vote_to_one_rank_exact", kTopk, Rollback::exact, one_to_two, {false, false, true}},
        DoubtCase{"one_vote_to_all_merge", kTopk, Rollback::merge, one_to_all, {true, false, true}},
        DoubtCase{"one_vote_to_all_exact", kTopk, Rollback::exact, one_to_all, {true, false, true}},
        DoubtCase{
            "one_vote_to_all_two_shot", kInt8, Rollback::merge, one_to_all, {true, false, true}},
        DoubtCase{"all_votes", kTopk, Rollback::exact, everybody, {true, true, true}}),
    [](auto const& c) { return c.param.name; });

// Those who heard every vote have begun the next step by the time they notice: what counts is the
// doubtful step, not their last one.
TEST(HookInDoubtBehind, SurvivorsThatWentOnAndFailedStillSayThatTheStepCounts) {
  LocalGroup rebuilt(kWorldSize);
  std::barrier all(kWorldSize);
  test::run_ranks(kWorldSize, [&](Transport& inner) {
    int const me = inner.rank();
    HookOptions options = options_for(kTopk);
    options.rollback = Rollback::exact;
    options.exchange_deadline = std::chrono::milliseconds(400);
    options.vote_deadline = std::chrono::milliseconds(800);
    std::vector<std::vector<std::uint32_t>> expected;
    {
      HookRank rank(inner, options, one_bucket_each({900}));
      for (std::uint64_t step = 0; step < 10; ++step) {
        rank.step(step);
        expected.push_back(bits_of(rank.all_results()));
      }
    }
    LossyTransport transport(inner, Channel::control, [&](int to) { return one_to_two(me, to); });
    HookRank rank(transport, options, one_bucket_each({900}));
    for (std::uint64_t step = 0; step < 4; ++step) rank.step(step);
    ASSERT_TRUE(rank.hook().begin(4).ok());
    rank.fill(4, heavy_tailed_of);
    ASSERT_TRUE(rank.reduce_all().ok());
    all.arrive_and_wait();
    transport.arm(true);
    StepResult const result = rank.hook().finish();
    ASSERT_EQ(result.committed, me != 2);
    EXPECT_EQ(rank.hook().committed(), me != 2);
    if (me != 2) {
      HookRank::Attempt const next = rank.attempt(5, heavy_tailed_of);
      EXPECT_EQ(next.reduced.code(), Code::timeout);
      EXPECT_FALSE(next.result.committed);
      EXPECT_EQ(rank.hook().failure().rank, 2);
    }
    all.arrive_and_wait();
    transport.arm(false);
    ASSERT_TRUE(rank.hook().recover(rebuilt.transport(me)).ok());

    if (me == 2) {
      EXPECT_TRUE(rank.hook().committed());
      EXPECT_EQ(bits_of(rank.all_results()), expected[4]) << "results stay";
    } else {
      EXPECT_FALSE(rank.hook().committed()) << "their last step was another";
    }
    for (std::uint64_t step = 5; step < 10; ++step) {
      rank.step(step);
      EXPECT_EQ(bits_of(rank.all_results()), expected[step]) << "step " << step;
    }
  });
}

// A vote that comes after its step was given up must not count for the second try of that step.
TEST(HookLateVote, OfAFirstTryDoesNotCountForTheSecond) {
  std::barrier all(2);
  test::run_ranks(2, [&](Transport& inner) {
    LateTransport transport(inner);
    HookOptions options = options_for(kTopk);
    options.rollback = Rollback::exact;
    options.exchange_deadline = std::chrono::milliseconds(300);
    options.vote_deadline = std::chrono::milliseconds(600);
    HookRank rank(transport, options, one_bucket_each({900}));
    for (std::uint64_t step = 0; step < 3; ++step) rank.step(step);
    bool const is_late = inner.rank() == 1;
    transport.hold(is_late);

    // The first try fails on rank 0, whose gradient has another size; rank 1 votes against, late.
    ASSERT_TRUE(rank.hook().begin(3).ok());
    rank.fill(3, heavy_tailed_of);
    std::span<float> const bucket(rank.bucket(0));
    Event event;
    static_cast<void>(
        rank.hook().reduce(0, TensorView(is_late ? bucket : bucket.first(899)), event));
    EXPECT_FALSE(rank.hook().wait(event).ok());
    EXPECT_FALSE(rank.hook().finish().committed);
    EXPECT_EQ(rank.hook().failure().rank, 0);
    EXPECT_EQ(rank.hook().failure().tensor, "t0");
    all.arrive_and_wait();
    transport.hold(false);

    for (std::uint64_t step = 3; step < 6; ++step) rank.step(step);
    all.arrive_and_wait();
  });
}

// Words about new rules that come after their call was given up must not count for the next call.
TEST(HookLateRules, OfACallThatTimedOutDoNotMeetTheNextOne) {
  std::barrier all(2);
  test::run_ranks(2, [&](Transport& inner) {
    LateTransport transport(inner);
    HookOptions options = options_for(kTopk);
    options.exchange_deadline = std::chrono::milliseconds(1000);
    HookRank rank(transport, options, one_bucket_each({900}));
    bool const is_late = inner.rank() == 1;
    transport.hold(is_late);
    std::vector<Rule> const dense = {{"*", "none"}};
    if (is_late) {
      rank.hook().set_rules(dense, 2);
    } else {
      EXPECT_THROW(rank.hook().set_rules(dense, 2), Error);
      EXPECT_EQ(rank.hook().failure().rank, 1);
    }
    all.arrive_and_wait();
    transport.hold(false);
    rank.step(0);

    rank.hook().set_rules({{"*", "int8 ; feedback=residual"}}, 2);

    for (std::uint64_t step = 1; step < 5; ++step) rank.step(step);
    EXPECT_EQ(rank.hook().tensor_stats()[0].spec.substr(0, 4), "int8");
    all.arrive_and_wait();
  });
}

// Nobody knows that it committed: all roll back, and the same gradient gives the same step.
TEST(HookInDoubtEverywhere, RollsBackAndTheStepMayBeSubmittedAgain) {
  LocalGroup rebuilt(kWorldSize);
  std::barrier all(kWorldSize);
  test::run_ranks(kWorldSize, [&](Transport& inner) {
    LossyTransport transport(inner, Channel::control, [](int) { return true; });
    HookOptions options = options_for(kTopk);
    options.rollback = Rollback::exact;
    options.exchange_deadline = std::chrono::milliseconds(400);
    options.vote_deadline = std::chrono::milliseconds(800);
    HookRank rank(transport, options, one_bucket_each({900}));
    for (std::uint64_t step = 0; step < 4; ++step) rank.step(step);
    auto const before = bits_of(rank.hook().residual("t0"));
    ASSERT_TRUE(rank.hook().begin(4).ok());
    rank.fill(4, heavy_tailed_of);
    ASSERT_TRUE(rank.reduce_all().ok());
    auto const results = bits_of(rank.all_results());
    all.arrive_and_wait();
    transport.arm(true);
    ASSERT_EQ(rank.hook().finish().status.code(), Code::in_doubt);
    all.arrive_and_wait();
    transport.arm(false);

    ASSERT_TRUE(rank.hook().recover(rebuilt.transport(inner.rank())).ok());
    rank.after_begin = [&] { EXPECT_EQ(bits_of(rank.hook().residual("t0")), before); };
    rank.step(4);

    EXPECT_EQ(bits_of(rank.all_results()), results);
  });
}

}  // namespace
}  // namespace gradsieve::testing
