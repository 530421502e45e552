// SPDX-License-Identifier: Apache-2.0
// Device gradients over a transport of host memory: through pinned memory, on the progress thread.
#include <atomic>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tests/distributed/cuda/hook_cuda_checks.hpp"
#include "tests/support/rank_runner.hpp"
#include "tests/support/test_transports.hpp"

namespace gradsieve::testing {
namespace {

/// A transport that, like an MPI without GPUs, would read what it is given as host memory.
class HostOnlyTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override {
    look_at(bytes.data());
    return inner_.send(channel, peer, tag, bytes, request);
  }
  Status receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                 Request& request) noexcept override {
    look_at(bytes.data());
    return inner_.receive(channel, peer, tag, bytes, request);
  }
  [[nodiscard]] int num_messages() const noexcept { return num_messages_; }
  [[nodiscard]] int num_of_devices() const noexcept { return num_of_devices_; }

 private:
  void look_at(void const* bytes) noexcept {
    ++num_messages_;
    cudaPointerAttributes found = {};
    if (cudaPointerGetAttributes(&found, bytes) != cudaSuccess ||
        found.type == cudaMemoryTypeDevice)
      ++num_of_devices_;
  }

  std::atomic<int> num_messages_ = 0;
  std::atomic<int> num_of_devices_ = 0;
};

// 1000 ones and 1000 twos on two devices: 3 everywhere, and no pointer of a device leaves the hook.
TEST(HookStaged, MpienvC75APlainTransportNeverSeesADevicePointer) {
  for (std::string const spec : {"none", "bf16", "topk(density=1) ; exchange=gather"}) {
    SCOPED_TRACE(spec);
    test::run_ranks(2, [&](Transport& inner) {
      HostOnlyTransport transport(inner);
      ASSERT_FALSE(transport.traits().device_memory);
      HookOptions options = options_for(spec);
      options.op = ReduceOp::sum;
      CudaHookRank rank(transport, options, one_bucket_each({1000}));
      GradientOf const ones_and_twos = [](int r, std::uint64_t, std::string const&,
                                          std::uint64_t count) {
        return std::vector<float>(count, static_cast<float>(r + 1));
      };
      for (std::uint64_t step = 0; step < 3; ++step) {
        ASSERT_TRUE(rank.attempt(step, ones_and_twos).result.committed);
        EXPECT_EQ(rank.all_results(), std::vector<float>(1000, 3.0F));
      }
      EXPECT_GT(transport.num_messages(), 6);
      EXPECT_EQ(transport.num_of_devices(), 0);
    });
  }
}

void expect_like_cpu(int world_size, HookCase const& c) {
  LocalGroup host(world_size);
  test::run_ranks(world_size, [&](Transport& transport) {
    std::string const found = check_like_cpu(transport, host.transport(transport.rank()), c);
    if (!found.empty()) throw std::runtime_error(c.spec + ", " + found);
  });
}

TEST(HookStaged, EverySpecGivesTheBitsOfTheCpu) {
  std::vector<std::string> const specs = cuda_specs();
  ASSERT_GE(specs.size(), 10U);
  for (std::string const& spec : specs) {
    SCOPED_TRACE(spec);
    EXPECT_NO_THROW(expect_like_cpu(2, {.spec = spec})) << spec;
    if (is_quick_subset()) continue;
    EXPECT_NO_THROW(expect_like_cpu(3, {.spec = spec, .rollback = Rollback::exact})) << spec;
  }
}

TEST(HookStaged, WhatChangesFromStepToStepIsAWordOnTheDevice) {
  for (std::string const spec :
       {"topk(density=0.01, warmup_steps=4, warmup_density=0.3) | int8 ; feedback=residual",
        "blocktopk(density=0.05, block=16, warmup_steps=4) | int4 ; feedback=residual(decay=0.9)",
        "threshold(value=2, max_density=0.02) | bf16 ; feedback=residual",
        "randomk(density=0.05, hold=3) ; feedback=residual",
        "int8(rounding=stochastic) ; feedback=residual"}) {
    SCOPED_TRACE(spec);
    EXPECT_NO_THROW(expect_like_cpu(2, {.spec = spec, .steps = 8}));
    if (is_quick_subset()) continue;
    EXPECT_NO_THROW(expect_like_cpu(2, {.spec = spec, .rollback = Rollback::exact, .steps = 8}));
  }
}

TEST(HookStaged, NonFiniteGradientsEndAsOnTheCpu) {
  for (OnNonFinite const what : {OnNonFinite::skip, OnNonFinite::error}) {
    EXPECT_NO_THROW(expect_like_cpu(
        3, {.spec = "topk(density=0.05) | int8 ; feedback=residual", .on_nonfinite = what}));
    EXPECT_NO_THROW(expect_like_cpu(2, {.spec = "int8 ; feedback=residual", .on_nonfinite = what}));
    EXPECT_NO_THROW(expect_like_cpu(2, {.spec = "none", .on_nonfinite = what}));
  }
}

TEST(HookStaged, AnyNumberOfRanks) {
  for (int const world_size : {1, 4}) {
    for (std::string const spec :
         {"topk(density=0.05) | int8 ; feedback=residual", "int4(block=64) ; feedback=residual",
          "sign ; feedback=residual ; exchange=gather", "none"}) {
      EXPECT_NO_THROW(expect_like_cpu(world_size, {.spec = spec})) << spec << world_size;
    }
  }
}

// Small tensors that are sent as they are lie between others in the bucket.
TEST(HookStaged, SmallTensorsAroundALargeOne) {
  for (std::string const spec : {"int8 ; feedback=residual ; dense_below=100",
                                 "topk(density=0.05) ; feedback=residual ; dense_below=100"}) {
    EXPECT_NO_THROW(expect_like_cpu(2, {.spec = spec})) << spec;
    if (is_quick_subset()) break;
    EXPECT_NO_THROW(expect_like_cpu(2, {.spec = spec, .dtype = DType::bf16})) << spec;
  }
}

TEST(HookStaged, HalfPrecisionGradients) {
  for (std::string const spec :
       {"topk(density=0.05) | int8 ; feedback=residual", "bf16 ; feedback=residual", "none"}) {
    for (DType const dtype : {DType::f16, DType::bf16})
      EXPECT_NO_THROW(expect_like_cpu(2, {.spec = spec, .dtype = dtype})) << spec;
  }
}

}  // namespace
}  // namespace gradsieve::testing
