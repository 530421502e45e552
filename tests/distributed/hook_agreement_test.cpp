// SPDX-License-Identifier: Apache-2.0
// Promise 6: disagreement is an error that names rank and field on every rank, and not a hang.
#include <barrier>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr auto kDeadline = std::chrono::seconds(5);

struct Disagreement {
  std::string name;
  std::string field;   ///< that Failure::field and the sentence have to name
  std::string tensor;  ///< that differs, if it is one tensor
  std::function<void(HookOptions&, Layout&)> change;
};
void PrintTo(Disagreement const& d, std::ostream* out) { *out << d.name; }

class HookAgreement : public ::testing::TestWithParam<Disagreement> {
 protected:
  static HookOptions options() {
    HookOptions options = options_for("topk(density=0.01) | int8 ; feedback=residual");
    options.exchange_deadline = kDeadline;
    options.vote_deadline = 2 * kDeadline;
    return options;
  }
};

// Three ranks, of which rank 1 is the odd one.
TEST_P(HookAgreement, IsAMismatchOnEveryRankWithinTheDeadline) {
  Disagreement const& disagreement = GetParam();
  test::run_ranks(3, [&](Transport& transport) {
    HookOptions mine = options();
    Layout layout = one_bucket_each({400, 4096, 30});
    if (transport.rank() == 1) disagreement.change(mine, layout);
    Hook hook(transport, mine);
    auto const start = Clock::now();

    try {
      hook.plan(layout.tensors, layout.buckets);
      ADD_FAILURE() << "rank " << transport.rank() << " planned something that others did not";
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), Code::mismatch) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(disagreement.field)) << "rank " << transport.rank();
      EXPECT_THAT(error.what(), HasSubstr("rank")) << "rank " << transport.rank();
      if (transport.rank() != 1) {
        EXPECT_THAT(error.what(), HasSubstr("rank 1"));
      }
      if (!disagreement.tensor.empty()) {
        EXPECT_THAT(error.what(), HasSubstr(disagreement.tensor));
      }
    }
    EXPECT_LT(Clock::now() - start, kDeadline + std::chrono::seconds(1));
    Failure const failure = hook.failure();
    EXPECT_EQ(failure.code, Code::mismatch);
    EXPECT_EQ(failure.field, disagreement.field);
    if (transport.rank() != 1) {
      EXPECT_EQ(failure.rank, 1);
    }
  });
}

// The group is none the worse for it: with the right plan the next attempt works.
TEST_P(HookAgreement, ASecondPlanThatAgreesSucceeds) {
  test::run_ranks(3, [&](Transport& transport) {
    {
      HookOptions mine = options();
      Layout layout = one_bucket_each({400, 4096, 30});
      if (transport.rank() == 1) GetParam().change(mine, layout);
      Hook hook(transport, mine);
      EXPECT_THROW(hook.plan(layout.tensors, layout.buckets), Error);
    }
    HookRank rank(transport, options(), one_bucket_each({400, 4096, 30}));
    for (std::uint64_t step = 0; step < 6; ++step) rank.step(step);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, HookAgreement,
    ::testing::Values(
        Disagreement{"Spec", "spec", "",
                     [](HookOptions& o, Layout&) {
                       o.rules[0].spec = "topk(density=0.02) | int8 ; feedback=residual";
                     }},
        Disagreement{"OneRule", "spec", "t1",
                     [](HookOptions& o, Layout&) {
                       o.rules.insert(o.rules.begin(), {.match = "t1", .spec = "none"});
                     }},
        Disagreement{"Seed", "seed", "", [](HookOptions& o, Layout&) { o.seed += 1; }},
        Disagreement{"Epoch", "epoch", "", [](HookOptions& o, Layout&) { o.epoch += 1; }},
        Disagreement{"Op", "op", "", [](HookOptions& o, Layout&) { o.op = ReduceOp::sum; }},
        Disagreement{"Rollback", "rollback", "",
                     [](HookOptions& o, Layout&) { o.rollback = Rollback::exact; }},
        Disagreement{"OnNonFinite", "on_nonfinite", "",
                     [](HookOptions& o, Layout&) { o.on_nonfinite = OnNonFinite::skip; }},
        Disagreement{"C48Length", "num_elements", "t1",
                     [](HookOptions&, Layout& l) { l.tensors[1].num_elements = 4094; }},
        Disagreement{"C48DtypeOfEqualByteSize", "dtype", "t1",
                     [](HookOptions&, Layout& l) { l.tensors[1].dtype = DType::bf16; }},
        Disagreement{"C49Name", "name", "renamed",
                     [](HookOptions&, Layout& l) {
                       l.tensors[2].name = "renamed";
                       l.buckets[2].tensors[0] = "renamed";
                     }},
        Disagreement{"OneTensorMore", "tensors", "",
                     [](HookOptions&, Layout& l) {
                       l.tensors.push_back({.name = "t3", .num_elements = 5});
                       l.buckets.push_back({{"t3"}});
                     }},
        Disagreement{"Buckets", "buckets", "",
                     [](HookOptions&, Layout& l) {
                       l.buckets = {{{"t0", "t1", "t2"}}};
                     }},
        Disagreement{"OrderOfTensors", "name", "",
                     [](HookOptions&, Layout& l) {
                       std::swap(l.tensors[0], l.tensors[2]);
                       std::swap(l.buckets[0], l.buckets[2]);
                     }}),
    [](auto const& c) { return c.param.name; });

// Every rank is told what the others wait for.
TEST(HookHang, C49NamesTheTensorsOfBothSides) {
  test::run_ranks(2, [](Transport& transport) {
    HookOptions options = options_for("none");
    options.exchange_deadline = kDeadline;
    std::string const name = transport.rank() == 0 ? "enc.w" : "enc_1.w";
    std::vector<TensorDesc> const tensors = {{.name = name, .num_elements = 16}};
    std::vector<BucketDesc> const buckets = {{{name}}};
    Hook hook(transport, options);

    try {
      hook.plan(tensors, buckets);
      ADD_FAILURE() << "planned different tensors";
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), Code::mismatch);
      EXPECT_THAT(error.what(), HasSubstr("enc.w"));
      EXPECT_THAT(error.what(), HasSubstr("enc_1.w"));
    }
  });
}

TEST(HookHang, ARankThatNeverPlansIsATimeoutThatNamesIt) {
  std::barrier after(3);
  test::run_ranks(3, [&](Transport& transport) {
    if (transport.rank() != 2) {
      HookOptions options = options_for("none");
      options.exchange_deadline = std::chrono::milliseconds(500);
      Hook hook(transport, options);
      Layout const layout = one_bucket_each({16});
      try {
        hook.plan(layout.tensors, layout.buckets);
        ADD_FAILURE() << "planned without rank 2";
      } catch (Error const& error) {
        EXPECT_EQ(error.code(), Code::timeout) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("2"));
      }
      EXPECT_EQ(hook.failure().rank, 2);
    }
    after.arrive_and_wait();
  });
}

// A rank that stays away from one exchange: the deadline ends it, and the failure says who.
TEST(HookHang, ARankThatMissesAReduceIsNamedAndTheNextStepsWork) {
  std::barrier missed(3);
  test::run_ranks(3, [&](Transport& transport) {
    HookOptions options = options_for("topk(density=0.05) ; feedback=residual");
    options.exchange_deadline = std::chrono::milliseconds(700);
    options.vote_deadline = std::chrono::seconds(8);
    HookRank rank(transport, options, one_bucket_each({500, 60}));
    for (std::uint64_t step = 0; step < 3; ++step) rank.step(step);

    ASSERT_TRUE(rank.hook().begin(3).ok());
    rank.fill(3, heavy_tailed_of);
    if (transport.rank() != 1) {
      EXPECT_FALSE(rank.reduce_all().ok());
      EXPECT_EQ(rank.hook().failure().rank, 1);
      EXPECT_THAT(rank.hook().failure().code, AnyOf(Code::timeout, Code::peer_failed));
    }
    missed.arrive_and_wait();
    StepResult const result = rank.hook().finish();

    EXPECT_FALSE(result.committed);
  });
}

}  // namespace
}  // namespace gradsieve::testing
