// SPDX-License-Identifier: Apache-2.0
// A link that drops to a crawl. The rank behind it misses the deadline of an exchange that the
// others have finished: all end the step in the same way, and go on when the link is back.
#include <mutex>

#include <gtest/gtest.h>

#include "tests/faults/changing_link.hpp"
#include "tests/faults/expected_run.hpp"
#include "tests/support/ledger.hpp"

namespace gradsieve::testing {
namespace {

constexpr int kWorldSize = 3;
constexpr int kSlowRank = 1;

struct CrawlCase {
  std::string name;
  std::string spec;
  Rollback rollback;
  bool own_weight;  ///< roundings are bounded by the element, not by its block
};
void PrintTo(CrawlCase const& c, std::ostream* out) { *out << c.name; }

class CrawlingLink : public ::testing::TestWithParam<CrawlCase> {};

TEST_P(CrawlingLink, EndsTheStepInTheSameWayOnAllRanks) {
  CrawlCase const& crawl = GetParam();
  Ledger ledger(700, kWorldSize);
  test::run_ranks(kWorldSize, [&](Transport& inner) {
    ChangingLink link(inner);
    HookOptions options = options_for(crawl.spec);
    options.rollback = crawl.rollback;
    options.exchange_deadline = std::chrono::milliseconds(1000);
    options.vote_deadline = std::chrono::milliseconds(3000);
    HookRank rank(link, options, one_bucket_each({700, 30}));
    for (std::uint64_t step = 0; step < 12; ++step) {
      bool const is_slow = step == 4 || step == 7;
      link.crawl(is_slow && inner.rank() == kSlowRank);
      Residuals const before = rank.all_residuals();
      HookRank::Attempt const attempt = rank.attempt(step, heavy_tailed_of);
      ASSERT_TRUE(attempt.begun.ok()) << attempt.begun.message();
      ASSERT_EQ(attempt.result.committed, !is_slow) << "step " << step;
      if (!is_slow || crawl.rollback == Rollback::merge)
        ledger.give(heavy_tailed_of(inner.rank(), step, "t0", 700));
      if (!is_slow && inner.rank() == 0) ledger.get(rank.result_of("t0"));
      if (!is_slow) continue;

      Failure const failure = rank.hook().failure();
      EXPECT_TRUE(failure.code == Code::timeout || failure.code == Code::peer_failed)
          << code_name(failure.code);
      if (inner.rank() == kSlowRank) {
        EXPECT_EQ(failure.code, Code::timeout) << "its own sends are late";
        EXPECT_EQ(failure.tensor, "t0");
      } else {
        EXPECT_EQ(failure.rank, kSlowRank);
      }
      EXPECT_EQ(compare_after_rollback(rank, crawl.rollback, before, step, heavy_tailed_of), "");
    }
    ledger.keep(rank.hook().residual("t0"));
  });
  ledger.expect_balance(crawl.own_weight);
}

INSTANTIATE_TEST_SUITE_P(
    Specs, CrawlingLink,
    ::testing::Values(
        CrawlCase{"topk_merge", "topk(density=0.05) ; feedback=residual", Rollback::merge, true},
        CrawlCase{"topk_exact", "topk(density=0.05) ; feedback=residual", Rollback::exact, true},
        CrawlCase{"two_shot_merge", "int8 ; feedback=residual ; exchange=two_shot", Rollback::merge,
                  false},
        CrawlCase{"two_shot_exact", "int8 ; feedback=residual ; exchange=two_shot", Rollback::exact,
                  false}),
    [](auto const& c) { return c.param.name; });

}  // namespace
}  // namespace gradsieve::testing
