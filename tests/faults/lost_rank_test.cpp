// SPDX-License-Identifier: Apache-2.0
// A rank that stops answering at any of its calls. The survivors learn who it is, agree on what
// counts, and go on as a smaller group; nothing of theirs is lost.
#include <atomic>
#include <barrier>
#include <map>
#include <mutex>

#include <gtest/gtest.h>

#include "comm/exchange/swap.hpp"
#include "tests/faults/expected_run.hpp"
#include "tests/faults/stalling_transport.hpp"
#include "tests/support/test_transports.hpp"

namespace gradsieve::testing {
namespace {

constexpr int kWorldSize = 4;
constexpr std::uint64_t kGoodSteps = 5;
constexpr std::uint64_t kStepsAfter = 6;

struct LostRankCase {
  std::string name;
  std::string spec;
  Rollback rollback;
};
void PrintTo(LostRankCase const& c, std::ostream* out) { *out << c.name; }

Layout layout() { return one_bucket_each({900, 40, 0}); }

HookOptions options_of(LostRankCase const& lost) {
  HookOptions options = options_for(lost.spec);
  options.rollback = lost.rollback;
  options.exchange_deadline = std::chrono::milliseconds(1000);
  options.vote_deadline = std::chrono::milliseconds(2000);
  return options;
}

/// What survivors tell each other through the test.
struct Books {
  std::mutex mutex;
  std::map<int, std::uint64_t> committed_steps;
  std::map<int, std::uint64_t> failed_step;
  std::map<int, Residuals> kept;
  std::map<int, std::vector<std::vector<float>>> results_after;  ///< [step]
};

/// Counts down also where a check has failed.
class AtTheEnd {
 public:
  explicit AtTheEnd(std::latch& latch) : latch_(latch) {}
  ~AtTheEnd() { latch_.count_down(); }
  AtTheEnd(AtTheEnd const&) = delete;
  AtTheEnd& operator=(AtTheEnd const&) = delete;

 private:
  std::latch& latch_;
};

void survive(Transport& transport, LostRankCase const& lost, int victim, std::barrier<>& survivors,
             LocalGroup& rebuilt, Books& books) {
  int const me = transport.rank();
  HookRank rank(transport, options_of(lost), layout());
  std::uint64_t step = 0;
  HookRank::Attempt attempt;
  auto const start = Clock::now();
  for (;; ++step) {
    attempt = rank.attempt(step, heavy_tailed_of);
    if (!attempt.result.committed) break;
  }
  bool const in_doubt = attempt.result.status.code() == Code::in_doubt;
  Failure const failure = rank.hook().failure();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(60)) << "a hang";
  EXPECT_TRUE(failure.code == Code::timeout || failure.code == Code::peer_failed ||
              failure.code == Code::in_doubt)
      << code_name(failure.code);
  EXPECT_EQ(failure.rank, victim);
  if (!in_doubt) {
    EXPECT_FALSE(failure.tensor.empty());
  }

  survivors.arrive_and_wait();
  Status const recovered = rank.hook().recover(rebuilt.transport(me - (me > victim ? 1 : 0)));
  ASSERT_TRUE(recovered.ok()) << recovered.message();
  std::uint64_t const committed = rank.hook().committed() ? step + 1 : step;
  {
    std::lock_guard const lock(books.mutex);
    books.committed_steps[me] = committed;
    books.failed_step[me] = step;
  }
  rank.plan(layout());
  ExpectedRun const expected = expected_run(kWorldSize, options_of(lost), layout(), committed);
  Residuals const& before = expected.residuals[static_cast<std::size_t>(me)];
  EXPECT_EQ(committed == step
                ? compare_after_rollback(rank, lost.rollback, before, step, heavy_tailed_of)
                : compare_exactly(rank.all_residuals(), before),
            "");

  // One number for all: the step after the last that anybody tried.
  survivors.arrive_and_wait();
  std::uint64_t next = 0;
  for (auto const& [other, failed] : books.failed_step) next = std::max(next, failed + 1);
  std::vector<std::vector<float>> results;
  for (std::uint64_t more = 0; more < kStepsAfter; ++more) {
    rank.step(next + more);
    results.push_back(rank.all_results());
  }
  std::lock_guard const lock(books.mutex);
  books.results_after[me] = std::move(results);
  books.kept[me] = rank.all_residuals();
}

void expect_conservation(LostRankCase const& lost, int victim, Books const& books) {
  std::uint64_t const committed = books.committed_steps.begin()->second;
  ExpectedRun const expected = expected_run(kWorldSize, options_of(lost), layout(), committed);
  std::vector<double> out = expected.sent;
  std::vector<double> given(out.size());
  auto const keep = [&](Residuals const& residuals) {
    std::size_t i = 0;
    for (auto const& residual : residuals)
      for (float const x : residual) out[i++] += x;
  };
  for (auto const& result : books.results_after.begin()->second) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += double{result[i]} * (kWorldSize - 1);
  }
  std::uint64_t next = 0;
  for (auto const& [rank, failed] : books.failed_step) next = std::max(next, failed + 1);
  for (auto const& [rank, residuals] : books.kept) {
    keep(residuals);
    add_gradients(given, layout(), rank, 0, committed);
    if (lost.rollback == Rollback::merge)
      add_gradients(given, layout(), rank, committed, books.failed_step.at(rank) + 1);
    add_gradients(given, layout(), rank, next, next + kStepsAfter);
  }
  keep(expected.residuals[static_cast<std::size_t>(victim)]);  // what the lost rank took along
  add_gradients(given, layout(), victim, 0, committed);

  double largest = 0.0;
  for (std::size_t i = 0; i < out.size(); ++i)
    largest = std::max(largest, std::abs(given[i]) + std::abs(out[i]));
  double const allowed =
      static_cast<double>(next + kStepsAfter + 1) * (2.0 + 2.0 * kWorldSize) * 0x1p-24 * largest;
  for (std::size_t i = 0; i < out.size(); ++i)
    ASSERT_NEAR(out[i], given[i], allowed) << "element " << i << ", victim " << victim;
}

/// Measures how long a rank is ready to wait for data after it has missed some.
class PatienceTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  Status receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                 Request& request) noexcept override {
    is_voting_ = channel == Channel::control;
    return inner_.receive(channel, peer, tag, bytes, request);
  }
  Status wait(Request& request, Deadline deadline) noexcept override {
    if (has_missed_ && !is_voting_) longest_ = std::max(longest_, deadline - Clock::now());
    Status const status = inner_.wait(request, deadline);
    has_missed_ = has_missed_ || status.code() == Code::timeout;
    return status;
  }
  [[nodiscard]] bool has_missed() const { return has_missed_; }
  [[nodiscard]] Clock::duration longest() const { return longest_; }

 private:
  bool is_voting_ = false;
  bool has_missed_ = false;
  Clock::duration longest_{};
};

// Rank 2 is gone, and rank 1, which has missed rank 0, too, sends it nothing any more.
TEST(LateRank, HasNoPatienceLeftOnceItHasMissedOne) {
  test::run_ranks(3, [](Transport& transport) {
    int const me = transport.rank();
    std::atomic<int> num_sent{0};
    LossyTransport lossy(transport, Channel::data, [&](int peer) {
      return me == 2 || (me == 1 && peer == 0 && num_sent++ > 0);
    });
    lossy.arm(true);
    PatienceTransport patience(lossy);
    HookOptions options = options_of({"", "topk(density=0.1) ; feedback=residual", {}});
    HookRank rank(patience, options, layout());

    HookRank::Attempt const attempt = rank.attempt(0, heavy_tailed_of);

    EXPECT_FALSE(attempt.result.committed);
    if (me != 0) return;
    EXPECT_TRUE(patience.has_missed());
    EXPECT_LE(patience.longest(), 2 * exchange::kGrace);
  });
}

class LostRank : public ::testing::TestWithParam<LostRankCase> {};

TEST_P(LostRank, IsNamedByAllAndTheSurvivorsGoOn) {
  LostRankCase const& lost = GetParam();
  ShapeNoise const dice(4711);
  for (std::uint64_t trial = 0; trial < 3; ++trial) {
    auto const random = dice.bits(trial);
    int const victim = static_cast<int>(random[0] % kWorldSize);
    int const num_calls = static_cast<int>(random[1] % 60);
    SCOPED_TRACE("rank " + std::to_string(victim) + " stalls after " + std::to_string(num_calls) +
                 " calls");
    LocalGroup rebuilt(kWorldSize - 1);
    std::latch over(kWorldSize - 1);
    std::barrier survivors(kWorldSize - 1);
    Books books;
    test::run_ranks(kWorldSize, [&](Transport& transport) {
      if (transport.rank() != victim) {
        AtTheEnd const end(over);
        survive(transport, lost, victim, survivors, rebuilt, books);
        return;
      }
      StallingTransport stalling(transport, over);
      HookRank rank(stalling, options_of(lost), layout());
      for (std::uint64_t step = 0;; ++step) {
        if (step == kGoodSteps) stalling.stall_after(num_calls);
        if (!rank.attempt(step, heavy_tailed_of).result.committed) break;
      }
    });
    if (HasFailure()) return;
    for (auto const& [rank, committed] : books.committed_steps)
      EXPECT_EQ(committed, books.committed_steps.begin()->second) << "rank " << rank;
    for (auto const& [rank, results] : books.results_after) {
      for (std::size_t step = 0; step < results.size(); ++step)
        ASSERT_EQ(bits_of(results[step]), bits_of(books.results_after.begin()->second[step]))
            << "rank " << rank << ", step " << step << " of the smaller group";
    }
    expect_conservation(lost, victim, books);
  }
}

constexpr char kTopk[] = "topk(density=0.02) ; feedback=residual";
constexpr char kTwoShot[] = "int8 ; feedback=residual ; exchange=two_shot";
INSTANTIATE_TEST_SUITE_P(
    Specs, LostRank,
    ::testing::Values(
        LostRankCase{"topk_merge", kTopk, Rollback::merge},
        LostRankCase{"topk_exact", kTopk, Rollback::exact},
        LostRankCase{"two_shot_merge", kTwoShot, Rollback::merge},
        LostRankCase{"two_shot_exact", kTwoShot, Rollback::exact},
        LostRankCase{"randomk_merge", "randomk(density=0.05) ; feedback=residual", Rollback::merge},
        LostRankCase{"cltk_exact", "cltk(density=0.05) ; feedback=residual", Rollback::exact},
        LostRankCase{"cltk_merge", "cltk(density=0.05) ; feedback=residual", Rollback::merge}),
    [](auto const& c) { return c.param.name; });

}  // namespace
}  // namespace gradsieve::testing
