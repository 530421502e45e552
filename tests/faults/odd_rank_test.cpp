// SPDX-License-Identifier: Apache-2.0
// One rank of an MPI job that is not like the others: it plans something else, brings a gradient of
// another size, or NaN. Every rank gets the code and the names; the next step works.
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/expected_run.hpp"
#include "tests/support/mpi_runner.hpp"

namespace gradsieve::testing {
namespace {

constexpr int kOddRank = 1;

struct OddPlan {
  std::string name;
  std::string field;
  std::string tensor;
  std::function<void(HookOptions&, Layout&)> change;
};
void PrintTo(OddPlan const& odd, std::ostream* out) { *out << odd.name; }

Layout layout() { return one_bucket_each({700, 4096, 30}); }

HookOptions options_with(Rollback rollback, OnNonFinite on_nonfinite = OnNonFinite::propagate) {
  HookOptions options = options_for("topk(density=0.02) ; feedback=residual");
  options.rollback = rollback;
  options.on_nonfinite = on_nonfinite;
  options.exchange_deadline = std::chrono::seconds(10);
  options.vote_deadline = std::chrono::seconds(20);
  return options;
}

class OddRankPlans : public ::testing::TestWithParam<OddPlan> {};

TEST_P(OddRankPlans, IsAMismatchThatAllRanksName) {
  test::run_mpi_rank([](Transport& transport) {
    OddPlan const& odd = GetParam();
    HookOptions options = options_with(Rollback::merge);
    Layout planned = layout();
    if (transport.rank() == kOddRank) odd.change(options, planned);
    Hook hook(transport, options);
    try {
      hook.plan(planned.tensors, planned.buckets);
      ADD_FAILURE() << "ranks that differ have agreed";
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), Code::mismatch) << error.what();
    }
    EXPECT_EQ(hook.failure().field, odd.field);
    EXPECT_EQ(hook.failure().rank, kOddRank);
    if (!odd.tensor.empty()) {
      EXPECT_TRUE(hook.failure().tensor == odd.tensor || transport.rank() == kOddRank);
    }
    // With the right plan the same transport serves.
    HookRank rank(transport, options_with(Rollback::merge), layout());
    for (std::uint64_t step = 0; step < 6; ++step) rank.step(step);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Plans, OddRankPlans,
    ::testing::Values(OddPlan{"C48Length", "num_elements", "t1",
                              [](HookOptions&, Layout& l) { l.tensors[1].num_elements = 4094; }},
                      OddPlan{"C48Dtype", "dtype", "t1",
                              [](HookOptions&, Layout& l) { l.tensors[1].dtype = DType::bf16; }},
                      OddPlan{"C49Name", "name", "t2",
                              [](HookOptions&, Layout& l) {
                                l.tensors[2].name = "renamed";
                                l.buckets[2].tensors[0] = "renamed";
                              }},
                      OddPlan{"Spec", "spec", "",
                              [](HookOptions& o, Layout&) {
                                o.rules[0].spec = "int8 ; feedback=residual";
                              }}),
    [](auto const& c) { return c.param.name; });

class OddRankStep : public ::testing::TestWithParam<Rollback> {};

TEST_P(OddRankStep, ThatBringsAnotherSizeIsNamedByAllRanks) {
  test::run_mpi_rank([](Transport& transport) {
    HookRank rank(transport, options_with(GetParam()), layout());
    for (std::uint64_t step = 0; step < 3; ++step) rank.step(step);
    Residuals const before = rank.all_residuals();

    ASSERT_TRUE(rank.hook().begin(3).ok());
    rank.fill(3, heavy_tailed_of);
    Event events[3];
    for (std::uint32_t b = 0; b < 3; ++b) {
      std::span<float> bucket(rank.bucket(b));
      bool const is_short = b == 1 && transport.rank() == kOddRank;
      if (is_short) bucket = bucket.first(4094);
      Status const status = rank.hook().reduce(b, TensorView(bucket), events[b]);
      if (is_short) {
        EXPECT_EQ(status.code(), Code::invalid_argument);
      }
    }
    for (Event const& event : events) static_cast<void>(rank.hook().wait(event));
    StepResult const result = rank.hook().finish();

    EXPECT_FALSE(result.committed);
    Failure const failure = rank.hook().failure();
    EXPECT_EQ(failure.rank, kOddRank);
    EXPECT_EQ(failure.tensor, "t1");
    bool const is_odd = transport.rank() == kOddRank;
    EXPECT_EQ(failure.code, is_odd ? Code::invalid_argument : Code::peer_failed);
    EXPECT_EQ(failure.field, is_odd ? "num_elements" : "status");
    if (GetParam() == Rollback::exact) {
      EXPECT_EQ(compare_exactly(rank.all_residuals(), before), "");
    } else if (!is_odd) {
      EXPECT_EQ(compare_after_rollback(rank, Rollback::merge, before, 3, heavy_tailed_of), "");
    }
    for (std::uint64_t step = 4; step < 10; ++step) rank.step(step);
  });
}

TEST_P(OddRankStep, ThatBringsNanIsNamedByAllRanks) {
  GradientOf const with_nan = [](int rank, std::uint64_t step, std::string const& tensor,
                                 std::uint64_t count) {
    std::vector<float> gradient = heavy_tailed_of(rank, step, tensor, count);
    if (rank == kOddRank && step == 3 && tensor == "t1")
      gradient[count / 3] = std::numeric_limits<float>::quiet_NaN();
    return gradient;
  };
  test::run_mpi_rank([&](Transport& transport) {
    HookRank rank(transport, options_with(GetParam(), OnNonFinite::error), layout());
    for (std::uint64_t step = 0; step < 3; ++step) rank.step(step, with_nan);
    Residuals const before = rank.all_residuals();

    HookRank::Attempt const attempt = rank.attempt(3, with_nan);

    EXPECT_FALSE(attempt.result.committed);
    Failure const failure = rank.hook().failure();
    EXPECT_EQ(failure.code, Code::non_finite);
    EXPECT_EQ(failure.rank, kOddRank);
    EXPECT_EQ(failure.tensor, "t1");
    for (auto const& residual : rank.all_residuals())
      for (float const x : residual) ASSERT_TRUE(std::isfinite(x));
    if (GetParam() == Rollback::exact) {
      EXPECT_EQ(compare_exactly(rank.all_residuals(), before), "");
    }
    for (std::uint64_t step = 4; step < 10; ++step) rank.step(step, with_nan);
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, OddRankStep, ::testing::Values(Rollback::merge, Rollback::exact),
                         [](auto const& c) {
                           return c.param == Rollback::merge ? "merge" : "exact";
                         });

}  // namespace
}  // namespace gradsieve::testing
