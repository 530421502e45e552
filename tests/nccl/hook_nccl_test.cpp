// SPDX-License-Identifier: Apache-2.0
// A hook whose payloads travel over NCCL: beside one on the CPU, step by step, and as a graph that
// is captured once and replayed.
#include <barrier>
#include <cmath>
#include <memory>

#include <gtest/gtest.h>

#include "gradsieve/exchange.hpp"

#include "tests/distributed/cuda/hook_cuda_checks.hpp"
#include "tests/nccl/nccl_ranks.hpp"
#include "tests/support/plugin_specs.hpp"

namespace gradsieve::testing {
namespace {

void run_beside_cpu(int world_size,
                    std::function<std::string(Transport& device, Transport& host)> const& check) {
  LocalGroup host(world_size);
  run_device_ranks(world_size, [&](Transport& bootstrap) {
    auto const device = make_nccl_transport(bootstrap);
    std::string const found = check(*device, host.transport(bootstrap.rank()));
    if (!found.empty()) throw std::runtime_error(found);
  });
}

class HookNccl : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!has_devices(GetParam())) GTEST_SKIP() << "needs " << GetParam() << " devices";
  }
  void expect_like_cpu(HookCase const& c) {
    EXPECT_NO_THROW(run_beside_cpu(GetParam(), [&](Transport& device, Transport& host) {
      return check_like_cpu(device, host, c);
    })) << c.spec;
  }
};

TEST_P(HookNccl, EverySpecGivesTheBitsOfTheCpu) {
  for (std::string const& spec : cuda_specs()) {
    // What goes through NCCL's own sum is added in another order than that of the ranks.
    bool const is_sum =
        make_chain(spec).compressor->round(0, {.num_elements = 100}).exchange == ExchangeKind::sum;
    expect_like_cpu({.spec = spec, .steps = 5, .whole_numbers = is_sum});
    if (is_quick_subset() && GetParam() > 2) break;
  }
}

// P numbers take P − 1 additions in whatever order, and the mean one product: each rounds by at
// most 2^-24 of what it gives, and no partial sum is larger than the sum of the magnitudes. The
// last factor covers the squares of 2^-24, the addend products below the normal numbers.
TEST_P(HookNccl, ASumIsAsExactAsAnyOrderAllows) {
  constexpr std::uint64_t kElements = 3000;
  float const weight = static_cast<float>(1.0 / GetParam());
  std::vector<double> sums(kElements);
  std::vector<double> magnitudes(kElements);
  for (int rank = 0; rank < GetParam(); ++rank) {
    std::vector<float> const own = heavy_tailed_of(rank, 0, "t0", kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      double const product = static_cast<double>(weight) * own[i];
      sums[i] += product;
      magnitudes[i] += std::abs(product);
    }
  }
  run_device_ranks(GetParam(), [&](Transport& bootstrap) {
    auto const device = make_nccl_transport(bootstrap);
    CudaHookRank rank(*device, options_for("none"), one_bucket_each({kElements}));
    ASSERT_TRUE(rank.attempt(0, heavy_tailed_of).result.committed);
    std::vector<float> const mean = rank.all_results();
    for (std::size_t i = 0; i < kElements; ++i) {
      double const bound = GetParam() * 0x1p-24 * magnitudes[i] * (1 + 0x1p-20) + 0x1p-149;
      EXPECT_NEAR(mean[i], sums[i], bound) << i;
    }
  });
}

// Whatever their number, small tensors of a bucket are coded together.
TEST_P(HookNccl, LaunchesDoNotGrowWithTheNumberOfTensors) {
  // What comes with more ranks, letters and decodes, is the same for all.
  std::vector<std::string> specs = {"int8 ; feedback=residual",
                                    "topk(density=0.1) | bf16 ; feedback=residual"};
  if (GetParam() == 2)
    specs.insert(
        specs.end(),
        {"none", "bf16 ; feedback=residual", "fp16 ; feedback=residual",
         "int4(rounding=stochastic) ; feedback=residual",
         "int8 ; feedback=residual ; dense_below=50", "sign(block=8) ; feedback=residual",
         "topk(density=0.1) ; feedback=residual",
         "topk(density=0.1, warmup_steps=9, warmup_density=0.3) | int8 ; feedback=residual",
         "threshold(value=2, max_density=0.2) | bf16 ; feedback=residual",
         "blocktopk(density=0.2, block=8) | sign ; feedback=residual",
         "randomk(density=0.1) ; feedback=residual",
         "randomk(density=0.1) | fp16 ; feedback=residual"});
  for (std::string const& spec : specs) {
    run_device_ranks(GetParam(), [&](Transport& bootstrap) {
      auto const device = make_nccl_transport(bootstrap);
      std::size_t const few = count_launches(*device, spec, 32);
      EXPECT_LE(few, 17 + 7 * static_cast<std::size_t>(GetParam())) << spec;
      EXPECT_EQ(count_launches(*device, spec, 96), few) << spec;
    });
    if (is_quick_subset()) break;
  }
}

TEST_P(HookNccl, ExactRollbackAndRamps) {
  expect_like_cpu({.spec = "topk(density=0.01, warmup_steps=4, warmup_density=0.3) | int8 ; "
                           "feedback=residual",
                   .rollback = Rollback::exact,
                   .with_long_tensor = GetParam() == 2});
  expect_like_cpu(
      {.spec = "int8(rounding=stochastic) ; feedback=residual", .rollback = Rollback::exact});
  expect_like_cpu({.spec = "threshold(value=2, max_density=0.02) ; feedback=residual",
                   .on_nonfinite = OnNonFinite::error});
}

TEST_P(HookNccl, AGraphReplaysSteps) {
  for (std::string const spec :
       {"topk(density=0.01, warmup_steps=9, warmup_density=0.2) | int8 ; feedback=residual",
        "int4(rounding=stochastic) ; feedback=residual", "sign ; feedback=residual"}) {
    HookCase const c{.spec = spec, .steps = 21};
    EXPECT_NO_THROW(run_beside_cpu(GetParam(), [&](Transport& device, Transport& host) {
      return check_graph_like_cpu(device, host, c);
    })) << spec;
    if (is_quick_subset()) break;
  }
}

// Given indices are host memory, and go where the transport's messages go: over the host transport,
// or over NCCL itself where an id is all that the ranks have.
TEST_P(HookNccl, GivenIndicesAreAddedInRankOrder) {
  NcclId const id = make_nccl_id();
  for (bool const by_id : {false, true}) {
    run_device_ranks(GetParam(), [&](Transport& bootstrap) {
      int const own = bootstrap.rank();
      auto const device =
          by_id ? make_nccl_transport(id, GetParam(), own) : make_nccl_transport(bootstrap);
      std::vector<std::uint64_t> const indices = {7, 100 + static_cast<std::uint64_t>(own)};
      std::vector<float> const values = {1.0F + static_cast<float>(own), 2.0F};
      SparseResult result;
      Status const status = sparse_all_reduce(
          *device, {.num_elements = 100000, .indices = indices, .values = values}, 0.5F, result);
      ASSERT_TRUE(status.ok()) << status.message();
      std::vector<std::uint64_t> expected = {7};
      std::vector<float> sums = {0.0F};
      for (int rank = 0; rank < GetParam(); ++rank) {
        sums[0] += 0.5F * (1.0F + static_cast<float>(rank));
        expected.push_back(100 + static_cast<std::uint64_t>(rank));
        sums.push_back(1.0F);
      }
      EXPECT_EQ(result.indices, expected);
      EXPECT_EQ(result.values, sums);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, HookNccl, ::testing::Values(2, 3, 4));

// --- what goes wrong
// ------------------------------------------------------------------------------

constexpr std::chrono::milliseconds kPatience{800};
constexpr std::chrono::milliseconds kSlack{5000};

HookOptions impatient(std::string const& spec) {
  HookOptions options = options_for(spec);
  options.exchange_deadline = kPatience / 2;
  options.vote_deadline = kPatience;
  return options;
}

class HookNcclFailures : public HookNccl {};
class HookNcclFailuresInLazyStreams : public HookNccl {};

TEST_P(HookNcclFailuresInLazyStreams, ARankThatStopsIsATimeoutOnTheOthers) {
  int const stopped = GetParam() - 1;
  run_device_ranks(GetParam(), [&](Transport& bootstrap) {
    auto const device = make_nccl_transport(bootstrap);
    CudaHookRank rank(*device, impatient("topk(density=0.05) | int8 ; feedback=residual"),
                      one_bucket_each({500, 40}));
    for (std::uint64_t step = 0; step < 2; ++step)
      EXPECT_TRUE(rank.attempt(step, heavy_tailed_of).result.committed);
    if (bootstrap.rank() == stopped) {
      std::this_thread::sleep_for(kPatience + kPatience);
      return;
    }
    Deadline const begin = Clock::now();
    StepResult const result = rank.attempt(2, heavy_tailed_of).result;
    EXPECT_LT(Clock::now() - begin, kPatience + kSlack);
    Code const code = result.status.code();
    EXPECT_TRUE(code == Code::timeout || code == Code::peer_failed || code == Code::aborted)
        << code_name(code);
    EXPECT_FALSE(result.committed);
    EXPECT_EQ(rank.hook().begin(3).code(), Code::in_doubt);
  });
}

/// A group to go on with after abort() has ended the bootstrap of the one before.
class SecondGroup {
 public:
  explicit SecondGroup(int world_size) : group_(world_size) {}
  [[nodiscard]] std::unique_ptr<Transport> transport(int rank) {
    return make_nccl_transport(group_.transport(rank));
  }

 private:
  LocalGroup group_;
};

// The last rank begins the step when the others have given it up. None of them has seen it commit,
// so on all of them its gradient waits in the residual, and the next steps go over another
// communicator as if nothing had been.
TEST_P(HookNcclFailuresInLazyStreams, RanksRecoverFromOneThatCameTooLate) {
  int const late = GetParam() - 1;
  SecondGroup second(GetParam());
  run_device_ranks(GetParam(), [&](Transport& bootstrap) {
    auto const device = make_nccl_transport(bootstrap);
    std::unique_ptr<Transport> next;  // outlives the hook
    Layout const layout = one_bucket_each({500, 40});
    CudaHookRank rank(*device, impatient("topk(density=0.05) ; feedback=residual"), layout);
    for (std::uint64_t step = 0; step < 2; ++step)
      EXPECT_TRUE(rank.attempt(step, heavy_tailed_of).result.committed);
    std::vector<float> expected = rank.hook().residual("t0");
    if (bootstrap.rank() == late) std::this_thread::sleep_for(kPatience + kPatience);

    EXPECT_FALSE(rank.attempt(2, heavy_tailed_of).result.committed);
    EXPECT_EQ(rank.hook().begin(3).code(), Code::in_doubt);
    next = second.transport(bootstrap.rank());
    Status const recovered = rank.hook().recover(*next);
    ASSERT_TRUE(recovered.ok()) << recovered.message();

    EXPECT_FALSE(rank.hook().committed());
    EXPECT_EQ(rank.hook().begin(3).code(), Code::invalid_usage);  // plan comes first
    rank.plan(layout);
    std::vector<float> const lost = heavy_tailed_of(bootstrap.rank(), 2, "t0", 500);
    for (std::size_t i = 0; i < lost.size(); ++i) expected[i] += lost[i];
    EXPECT_EQ(bits_of(rank.hook().residual("t0")), bits_of(expected));
    for (std::uint64_t step = 3; step < 5; ++step)
      EXPECT_TRUE(rank.attempt(step, heavy_tailed_of).result.committed);
    cudaStreamSynchronize(rank.stream());
  });
}

TEST_P(HookNcclFailuresInLazyStreams, AnAbortedCommunicatorEndsTheStep) {
  std::barrier all_know(GetParam());  // or a rank may hear of the abort before its first outcome
  run_device_ranks(GetParam(), [&](Transport& bootstrap) {
    auto const device = make_nccl_transport(bootstrap);
    CudaHookRank rank(*device, impatient("int8 ; feedback=residual"), one_bucket_each({500}));
    EXPECT_TRUE(rank.attempt(0, heavy_tailed_of).result.committed);
    all_know.arrive_and_wait();
    Deadline const begin = Clock::now();
    if (bootstrap.rank() == 0) device->abort();
    HookRank::Attempt const attempt = rank.attempt(1, heavy_tailed_of);
    EXPECT_LT(Clock::now() - begin, kPatience + kSlack);
    EXPECT_FALSE(attempt.result.committed);
    Code const code = attempt.result.status.code();
    EXPECT_TRUE(code == Code::aborted || code == Code::peer_failed || code == Code::timeout)
        << code_name(code);
    if (bootstrap.rank() == 0) {
      EXPECT_EQ(code, Code::aborted);
    }
  });
}

TEST_P(HookNcclFailures, AGradientOfAnotherSizeFailsTheStepOnAllRanks) {
  run_device_ranks(GetParam(), [&](Transport& bootstrap) {
    auto const device = make_nccl_transport(bootstrap);
    CudaHookRank rank(*device, options_for("topk(density=0.05) ; feedback=residual"),
                      one_bucket_each({500}));
    EXPECT_TRUE(rank.attempt(0, heavy_tailed_of).result.committed);
    std::vector<float> const before = rank.hook().residual("t0");
    ASSERT_TRUE(rank.hook().begin(1).ok());
    Buffer const memory(500 * sizeof(float), device_memory(), {rank.stream()});
    std::uint64_t const count = bootstrap.rank() == 0 ? 499 : 500;
    Event event;
    Status const status =
        rank.hook().reduce(0, TensorView(memory.data(), count, DType::f32, Device::cuda), event);
    EXPECT_EQ(status.code(), bootstrap.rank() == 0 ? Code::invalid_argument : Code::ok);
    static_cast<void>(rank.hook().finish());
    StepResult const result = rank.hook().synchronize();
    EXPECT_FALSE(result.committed);
    EXPECT_EQ(result.status.code(),
              bootstrap.rank() == 0 ? Code::invalid_argument : Code::peer_failed);
    EXPECT_EQ(rank.hook().failure().rank, 0);
    EXPECT_EQ(bits_of(rank.hook().residual("t0")), bits_of(before));  // a gradient of zeros
    EXPECT_TRUE(rank.attempt(2, heavy_tailed_of).result.committed);
  });
}

TEST_P(HookNcclFailures, RanksThatPlanOtherSpecsAreToldSo) {
  run_device_ranks(GetParam(), [&](Transport& bootstrap) {
    auto const device = make_nccl_transport(bootstrap);
    char const* const spec = bootstrap.rank() == 0 ? "int8" : "int4";
    try {
      CudaHookRank const rank(*device, options_for(spec), one_bucket_each({500}));
      ADD_FAILURE() << "planned with different specs";
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), Code::mismatch);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, HookNcclFailures, ::testing::Values(2, 3, 4));
INSTANTIATE_TEST_SUITE_P(Ranks, HookNcclFailuresInLazyStreams, ::testing::Values(2, 3, 4));

TEST(HookNcclPlan, RefusesWhatDoesNotRunOnADevice) {
  LocalGroup group(1);
  std::vector<std::string> specs = {"int8 | zstd", "topk(density=0.1) | zstd",
                                    "int8 ; feedback=residual(dtype=bf16)", "randomk(density=0.1)"};
  std::size_t const num_written = specs.size();
  for (SpecCase const& spec_case : default_specs()) {
    Chain const chain = with_feedback(spec_case);
    if (!chain.compressor->claims().cuda) specs.push_back(chain.text);
  }
  ASSERT_GT(specs.size(), num_written);
  for (std::string const& spec : specs) {
    try {
      CudaHookRank const rank(group.transport(0), options_for(spec), one_bucket_each({500}));
      ADD_FAILURE() << spec << " was planned";
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument) << spec;
      EXPECT_NE(std::string(error.what()).find("backend=cuda"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace gradsieve::testing
