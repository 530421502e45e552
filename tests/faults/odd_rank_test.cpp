// SPDX-License-Identifier: Apache-2.0
// One rank of an MPI job that is not like the others: it plans something else, brings a gradient of
// another size, or NaN. Every rank gets the code and the names; the next step works.
#include <deque>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/expected_run.hpp"
#include "tests/support/ledger.hpp"
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

constexpr std::uint64_t kOddStep = 3;
constexpr std::uint64_t kEndStep = 10;

/// What all ranks gave and got. Every rank keeps the books of all: it can compute what they bring.
class Books {
 public:
  explicit Books(int world_size) : world_size_(world_size) {
    for (TensorDesc const& tensor : layout().tensors)
      ledgers_.emplace_back(static_cast<std::size_t>(tensor.num_elements), world_size);
  }

  /// A step that took those gradients.
  void give(std::uint64_t step, GradientOf const& taken_of) {
    for_each_tensor([&](TensorDesc const& tensor, Ledger& ledger) {
      for (int rank = 0; rank < world_size_; ++rank)
        ledger.give(taken_of(rank, step, tensor.name, tensor.num_elements));
    });
  }
  /// The means of a step that counts.
  void get(HookRank const& rank) {
    for_each_tensor(
        [&](TensorDesc const& tensor, Ledger& ledger) { ledger.get(rank.result_of(tensor.name)); });
  }
  /// Called by all ranks at the end.
  void expect_balance(HookRank& rank) {
    for_each_tensor([&](TensorDesc const& tensor, Ledger& ledger) {
      std::vector<float> const own = rank.hook().residual(tensor.name);
      std::vector<float> all(own.size() * static_cast<std::size_t>(world_size_));
      int const count = static_cast<int>(own.size());
      MPI_Allgather(own.data(), count, MPI_FLOAT, all.data(), count, MPI_FLOAT, MPI_COMM_WORLD);
      for (auto at = all.begin(); at != all.end(); at += count) ledger.keep({at, at + count});
      SCOPED_TRACE(tensor.name);
      ledger.expect_balance(true);  // top-k sends what it keeps as it is
    });
  }

 private:
  template <class Visit>
  void for_each_tensor(Visit&& visit) {
    Layout const planned = layout();
    for (std::size_t t = 0; t < ledgers_.size(); ++t) visit(planned.tensors[t], ledgers_[t]);
  }

  int world_size_;
  std::deque<Ledger> ledgers_;
};

class OddRankStep : public ::testing::TestWithParam<Rollback> {
 protected:
  /// Trains with one odd step, which `run_odd_step` runs and examines; then state and books of all
  /// ranks are as promised. `taken_of`: what of the gradients a step takes.
  static void train(Transport& transport, OnNonFinite on_nonfinite, GradientOf const& gradient_of,
                    GradientOf const& taken_of,
                    std::function<void(HookRank&)> const& run_odd_step) {
    HookRank rank(transport, options_with(GetParam(), on_nonfinite), layout());
    Books books(transport.world_size());
    for (std::uint64_t step = 0; step < kEndStep; ++step) {
      if (step != kOddStep || GetParam() == Rollback::merge) books.give(step, taken_of);
      if (step != kOddStep) {
        rank.step(step, gradient_of);
        books.get(rank);
        continue;
      }
      Residuals const before = rank.all_residuals();
      run_odd_step(rank);
      EXPECT_EQ(compare_after_rollback(rank, GetParam(), before, step, taken_of), "");
    }
    books.expect_balance(rank);
  }
};

TEST_P(OddRankStep, ThatBringsAnotherSizeIsNamedByAllRanks) {
  GradientOf const taken_of = [](int rank, std::uint64_t step, std::string const& tensor,
                                 std::uint64_t count) {
    bool const is_short = rank == kOddRank && step == kOddStep && tensor == "t1";
    return is_short ? std::vector<float>(count) : heavy_tailed_of(rank, step, tensor, count);
  };
  test::run_mpi_rank([&](Transport& transport) {
    bool const is_odd = transport.rank() == kOddRank;
    train(transport, OnNonFinite::propagate, heavy_tailed_of, taken_of, [&](HookRank& rank) {
      auto const before = bits_of(rank.hook().residual("t1"));
      ASSERT_TRUE(rank.hook().begin(kOddStep).ok());
      rank.fill(kOddStep, heavy_tailed_of);
      Event events[3];
      for (std::uint32_t b = 0; b < 3; ++b) {
        std::span<float> bucket(rank.bucket(b));
        if (b == 1 && is_odd) bucket = bucket.first(4094);
        Status const status = rank.hook().reduce(b, TensorView(bucket), events[b]);
        if (b == 1 && is_odd) {
          EXPECT_EQ(status.code(), Code::invalid_argument);
        }
      }
      for (Event const& event : events) static_cast<void>(rank.hook().wait(event));
      StepResult const result = rank.hook().finish();

      EXPECT_FALSE(result.committed);
      Failure const failure = rank.hook().failure();
      EXPECT_EQ(failure.rank, kOddRank);
      EXPECT_EQ(failure.tensor, "t1");
      EXPECT_EQ(failure.code, is_odd ? Code::invalid_argument : Code::peer_failed);
      EXPECT_EQ(failure.field, is_odd ? "num_elements" : "status");
      if (is_odd) {
        EXPECT_EQ(bits_of(rank.hook().residual("t1")), before) << "that gradient is not kept";
      }
    });
  });
}

TEST_P(OddRankStep, ThatBringsNanIsNamedByAllRanks) {
  auto const with = [](float odd) -> GradientOf {
    return
        [odd](int rank, std::uint64_t step, std::string const& tensor, std::uint64_t num_elements) {
          std::vector<float> gradient = heavy_tailed_of(rank, step, tensor, num_elements);
          if (rank == kOddRank && step == kOddStep && tensor == "t1")
            gradient[num_elements / 3] = odd;
          return gradient;
        };
  };
  GradientOf const gradient_of = with(std::numeric_limits<float>::quiet_NaN());
  GradientOf const taken_of = with(0.0F);  // docs/numerics.md: the element counts as 0
  test::run_mpi_rank([&](Transport& transport) {
    train(transport, OnNonFinite::error, gradient_of, taken_of, [&](HookRank& rank) {
      HookRank::Attempt const attempt = rank.attempt(kOddStep, gradient_of);

      EXPECT_FALSE(attempt.result.committed);
      Failure const failure = rank.hook().failure();
      EXPECT_EQ(failure.code, Code::non_finite);
      EXPECT_EQ(failure.rank, kOddRank);
      EXPECT_EQ(failure.tensor, "t1");
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, OddRankStep, ::testing::Values(Rollback::merge, Rollback::exact),
                         [](auto const& c) {
                           return c.param == Rollback::merge ? "merge" : "exact";
                         });

}  // namespace
}  // namespace gradsieve::testing
