// SPDX-License-Identifier: Apache-2.0
// What trainers do to buckets: rebuild them, leave tensors out, accumulate over micro-batches,
// retry a plan (cases C-54, C-58, C-60, C-68).
#include <barrier>

#include <gtest/gtest.h>

#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"
#include "tests/support/test_transports.hpp"

namespace gradsieve::testing {
namespace {

constexpr char kTopk[] = "topk(density=0.05) ; feedback=residual";

TEST(HookBuckets, ARebuildKeepsWhatTensorsRemember) {
  std::vector<std::vector<std::vector<std::uint32_t>>> results(2);
  for (std::size_t variant = 0; variant < 2; ++variant) {
    test::run_ranks(3, [&](Transport& transport) {
      Layout const apart = one_bucket_each({1000, 300, 20});
      Layout swapped = all_in_one(apart);
      std::swap(swapped.buckets[0].tensors[0], swapped.buckets[0].tensors[2]);
      HookRank rank(transport, options_for(kTopk), apart);
      for (std::uint64_t step = 0; step < 16; ++step) {
        if (variant == 1 && step % 4 == 3) rank.plan(step % 8 == 3 ? swapped : apart);
        rank.step(step);
        if (transport.rank() != 2) continue;
        for (TensorDesc const& tensor : apart.tensors)
          results[variant].push_back(bits_of(rank.result_of(tensor.name)));
      }
    });
  }
  EXPECT_EQ(results[1], results[0]) << "a bucket is how tensors travel, not what they are";
}

// Later rounds are encoded by the progress thread, while the caller encodes the next bucket.
TEST(HookBuckets, TheProgressThreadChangesNoBit) {
  for (std::string const spec :
       {"cltk(density=0.1) ; feedback=residual(dtype=bf16)",
        "cltk(density=0.1) | int8(rounding=stochastic) ; feedback=residual",
        "int8 ; feedback=residual(dtype=bf16)"}) {
    std::vector<std::vector<std::vector<std::uint32_t>>> results(2);
    for (std::size_t variant = 0; variant < 2; ++variant) {
      test::run_ranks(3, [&](Transport& transport) {
        HookOptions options = options_for(spec);
        options.progress_thread = variant == 1;
        options.num_threads = 2;
        HookRank rank(transport, options,
                      one_bucket_each({9'000, 300, 4'000, 1, 7'000, 17'000, 2'000}));
        for (std::uint64_t step = 0; step < 8; ++step) {
          rank.step(step);
          if (transport.rank() == 1) results[variant].push_back(bits_of(rank.all_results()));
        }
        auto const residuals = rank.all_residuals();
        if (transport.rank() != 1) return;
        for (auto const& residual : residuals) results[variant].push_back(bits_of(residual));
      });
    }
    EXPECT_EQ(results[1], results[0]) << spec;
  }
}

TEST(HookBuckets, DdpC54AThousandRebuildsKeepOneResidualPerTensor) {
  test::run_ranks(2, [](Transport& transport) {
    Layout const ten = one_bucket_each({10, 64});
    Layout seven = ten;
    seven.tensors[0].num_elements = 7;
    HookRank rank(transport, options_for(kTopk), ten);
    std::size_t largest = rank.hook().state_bytes();
    std::vector<float> other_before;
    for (std::uint64_t round = 0; round < 1000; ++round) {
      rank.step(round);
      std::vector<float> const other = rank.hook().residual("t1");
      rank.plan(round % 2 == 0 ? seven : ten);
      ASSERT_EQ(rank.hook().residual("t1"), other)
          << "round " << round << ": a tensor of unchanged shape";
      std::vector<float> const changed = rank.hook().residual("t0");
      ASSERT_EQ(changed.size(), round % 2 == 0 ? 7u : 10u);
      if (round < 2) largest = std::max(largest, rank.hook().state_bytes());
      ASSERT_LE(rank.hook().state_bytes(), largest) << "round " << round;
    }
  });
}

TEST(HookBuckets, DdpC58ATensorThatNobodyUsedIsLeftAlone) {
  test::run_ranks(2, [](Transport& transport) {
    HookRank rank(transport, options_for(kTopk), one_bucket_each({400, 300}));
    for (std::uint64_t step = 0; step < 4; ++step) rank.step(step);
    std::vector<float> const residual = rank.hook().residual("t1");
    std::vector<float> const gradient = rank.bucket(1);
    for (std::uint64_t step = 4; step < 10; ++step) {
      ASSERT_TRUE(rank.hook().begin(step).ok());
      std::vector<float> const given = heavy_tailed_of(transport.rank(), step, "t0", 400);
      std::ranges::copy(given, rank.bucket(0).begin());
      Event event;
      ASSERT_TRUE(rank.hook().reduce(0, TensorView(std::span<float>(rank.bucket(0))), event).ok());
      ASSERT_TRUE(rank.hook().wait(event).ok());
      ASSERT_TRUE(rank.hook().finish().committed);
      EXPECT_EQ(rank.bucket(1), gradient);
      EXPECT_EQ(rank.hook().residual("t1"), residual) << "step " << step;
    }
    for (std::uint64_t step = 10; step < 14; ++step) rank.step(step);
  });
}

TEST(HookBuckets, DdpC58ATensorThatOneRankDidNotUseCountsAsZero) {
  test::run_ranks(2, [](Transport& transport) {
    for (char const* spec : {"none", "topk(density=1) ; feedback=residual", "fp16"}) {
      HookRank rank(transport, options_for(spec), one_bucket_each({8}));
      for (std::uint64_t step = 0; step < 6; ++step) {
        rank.step(step, [](int r, std::uint64_t, std::string const&, std::uint64_t n) {
          return std::vector<float>(n, r == 0 ? 4.0F : 0.0F);
        });
        for (float const x : rank.bucket(0)) ASSERT_EQ(x, 2.0F) << spec;
      }
    }
  });
}

TEST(HookBuckets, DdpC60AWindowOfMicroBatchesIsOneExchange) {
  test::run_ranks(2, [](Transport& inner) {
    CountingTransport transport(inner);
    HookRank rank(transport, options_for("topk(density=1) ; feedback=residual"),
                  one_bucket_each({4}));
    std::vector<std::vector<float>> const micro = {{2.0F, 4.0F}, {6.0F, 10.0F}};
    for (std::uint64_t window = 0; window < 6; ++window) {
      std::uint64_t const before = transport.messages(Channel::data);
      rank.step(window, [&](int r, std::uint64_t, std::string const&, std::uint64_t n) {
        std::vector<float> sum(n, 0.0F);
        for (float const g : micro[static_cast<std::size_t>(r)]) {
          for (float& x : sum) x += g;
        }
        return sum;
      });
      for (float const x : rank.bucket(0)) ASSERT_EQ(x, 11.0F);
      EXPECT_EQ(transport.messages(Channel::data) - before, 1u) << "one payload to one peer";
    }
  });
}

// MPICH's MPI_TAG_UB is 2^28 - 1.
TEST(HookBuckets, TagsOfEveryMessageAreBelowTheBoundOfEveryMpi) {
  test::run_ranks(2, [](Transport& inner) {
    CountingTransport transport(inner);
    HookRank rank(transport, options_for("topk(density=1) ; feedback=residual"),
                  one_bucket_each({4, 8}));
    for (std::uint64_t step = 0; step < 3; ++step) {
      rank.step(step, [](int, std::uint64_t, std::string const&, std::uint64_t n) {
        return std::vector<float>(n, 1.0F);
      });
    }
    EXPECT_GT(transport.messages(Channel::control), 0u);
    EXPECT_LT(transport.largest_tag(), 1u << 28);
  });
}

// Many hooks on one group, one after another: what is left of one must not reach the next.
TEST(HookBuckets, CkptC68AFailedPlanCanBeRetried) {
  std::barrier both(2);
  test::run_ranks(2, [&](Transport& transport) {
    for (int repeat = 0; repeat < 5; ++repeat) {
      HookOptions options = options_for(kTopk);
      Layout const layout = one_bucket_each({500});
      if (transport.rank() == 0) {
        options.exchange_deadline = std::chrono::milliseconds(200);
        Hook hook(transport, options);
        EXPECT_THROW(hook.plan(layout.tensors, layout.buckets), Error) << "rank 1 is not there yet";
      }
      both.arrive_and_wait();
      options.exchange_deadline = std::chrono::seconds(10);
      HookRank rank(transport, options, layout);
      for (std::uint64_t step = 0; step < 6; ++step) rank.step(step);
      std::vector<float> const mine = rank.bucket(0);
      EXPECT_NE(mine, std::vector<float>(500)) << "repeat " << repeat;
      both.arrive_and_wait();
    }
  });
}

TEST(HookPlan, RefusesWhatMakesNoSenseWithASentence) {
  struct Bad {
    char const* what;
    std::function<void(HookOptions&, Layout&)> change;
    Code code;
  };
  std::vector<Bad> const bad = {
      {"no rules", [](HookOptions& o, Layout&) { o.rules.clear(); }, Code::invalid_argument},
      {"no rule matches", [](HookOptions& o, Layout&) { o.rules[0].match = "conv*"; },
       Code::invalid_argument},
      {"unknown name", [](HookOptions& o, Layout&) { o.rules[0].spec = "topK(density=0.01)"; },
       Code::unknown_name},
      {"density 0", [](HookOptions& o, Layout&) { o.rules[0].spec = "topk(density=0)"; },
       Code::invalid_argument},
      {"density nan", [](HookOptions& o, Layout&) { o.rules[0].spec = "topk(density=nan)"; },
       Code::invalid_argument},
      {"density above 1", [](HookOptions& o, Layout&) { o.rules[0].spec = "topk(density=1.5)"; },
       Code::invalid_argument},
      {"two tensors of one name", [](HookOptions&, Layout& l) { l.tensors[1].name = "t0"; },
       Code::invalid_argument},
      {"a bucket of an unknown tensor",
       [](HookOptions&, Layout& l) { l.buckets[0].tensors[0] = "t9"; }, Code::invalid_argument},
      {"a tensor in two buckets", [](HookOptions&, Layout& l) { l.buckets[1].tensors[0] = "t0"; },
       Code::invalid_argument},
      {"predivide 0", [](HookOptions& o, Layout&) { o.predivide = 0.0; }, Code::invalid_argument},
      {"a sparse result", [](HookOptions& o, Layout&) { o.result = ResultForm::sparse; },
       Code::not_implemented},
      {"scope=model", [](HookOptions& o, Layout&) { o.rules[0].spec = "topk ; scope=model"; },
       Code::not_implemented},
      {"hold where indices are not shared",
       [](HookOptions& o, Layout&) { o.rules[0].spec = "topk(hold=4)"; }, Code::invalid_argument},
      {"vote deadline below an exchange's",
       [](HookOptions& o, Layout&) { o.vote_deadline = std::chrono::milliseconds(1); },
       Code::invalid_argument},
  };
  for (Bad const& b : bad) {
    SCOPED_TRACE(b.what);
    test::run_ranks(1, [&](Transport& transport) {
      HookOptions options = options_for(kTopk);
      Layout layout = one_bucket_each({50, 60});
      b.change(options, layout);
      try {
        Hook hook(transport, options);
        hook.plan(layout.tensors, layout.buckets);
        ADD_FAILURE() << "was planned";
      } catch (Error const& error) {
        EXPECT_TRUE(error.code() == b.code || error.code() == Code::unknown_name) << error.what();
        EXPECT_GE(std::string(error.what()).size(), 20u);
      }
    });
  }
}

TEST(HookPlan, StepsAfterAFailedReplanStillWork) {
  test::run_ranks(2, [](Transport& transport) {
    Layout const good = one_bucket_each({200, 30});
    HookRank rank(transport, options_for(kTopk), good);
    HookRank other(transport, options_for(kTopk), good);
    for (std::uint64_t step = 0; step < 4; ++step) {
      rank.step(step);
      other.step(step);
    }
    Layout bad = good;
    bad.buckets[0].tensors[0] = "unknown";
    EXPECT_THROW(rank.hook().plan(bad.tensors, bad.buckets), Error);
    for (std::uint64_t step = 4; step < 10; ++step) {
      rank.step(step);
      other.step(step);
      EXPECT_EQ(bits_of(rank.all_results()), bits_of(other.all_results())) << "step " << step;
    }
  });
}

}  // namespace
}  // namespace gradsieve::testing
