// SPDX-License-Identifier: Apache-2.0
// The C interface with gradients on devices: over NCCL by each way of making it, and over threads
// through pinned memory, it gives the bits of the C interface on the CPU.
#include <cstring>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "core/philox.hpp"
#include "tests/bindings/c_ranks.hpp"

namespace gradsieve::testing {
namespace {

constexpr std::uint64_t kCount = 1500;
constexpr std::uint64_t kSteps = 6;
constexpr char kSpec[] = "topk(density=0.02) | int8 ; feedback=residual";

std::vector<float> gradient_of(int rank, std::uint64_t step) {
  std::vector<float> values(kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    std::uint64_t const bits = mix64(i + 10000 * step + 1000000 * static_cast<unsigned>(rank));
    values[i] = static_cast<float>(static_cast<std::int32_t>(bits >> 40) - 8388608) * 1e-4F;
  }
  return values;
}

ContextPtr cuda_context() {
  gsvContextConfig_t config = GSV_INIT(gsvContextConfig_t);
  config.seed = 17;
  config.backend = gsvBackendCuda;
  gsvContext_t context = nullptr;
  EXPECT_GSV(gsvContextCreate(&context, &config));
  return ContextPtr(context);
}

/// The results of all steps, one behind another.
std::vector<float> train_on_cpu(gsvComm_t comm, int rank) {
  ContextPtr const context = make_context();
  HookPtr const hook = make_hook(comm, context.get(), kSpec);
  EXPECT_GSV(plan_one(hook.get(), kCount));
  std::vector<float> all;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    std::vector<float> gradient = gradient_of(rank, step);
    gsvStepResult_t outcome = GSV_INIT(gsvStepResult_t);
    EXPECT_GSV(step_one(hook.get(), step, gradient, outcome));
    EXPECT_EQ(outcome.committed, 1U);
    all.insert(all.end(), gradient.begin(), gradient.end());
  }
  return all;
}

std::vector<float> train_on_device(gsvComm_t comm, int rank, bool is_pending) {
  ContextPtr const context = cuda_context();
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  std::vector<float> all;
  {
    gsvHookOptions_t options = GSV_INIT(gsvHookOptions_t);
    options.stream = stream;
    HookPtr const hook = make_hook(comm, context.get(), kSpec, options);
    EXPECT_GSV(plan_one(hook.get(), kCount));
    float* device = nullptr;
    float* host = nullptr;
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&device), kCount * sizeof(float)), cudaSuccess);
    EXPECT_EQ(cudaMallocHost(reinterpret_cast<void**>(&host), kCount * sizeof(float)), cudaSuccess);
    std::uint32_t const* word = nullptr;
    EXPECT_GSV(gsvHookCommittedWord(hook.get(), &word));
    EXPECT_NE(word, nullptr);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      std::vector<float> const gradient = gradient_of(rank, step);
      std::memcpy(host, gradient.data(), kCount * sizeof(float));
      cudaMemcpyAsync(device, host, kCount * sizeof(float), cudaMemcpyHostToDevice, stream);
      gsvEvent_t event;
      gsvStepResult_t outcome = GSV_INIT(gsvStepResult_t);
      EXPECT_GSV(gsvHookBegin(hook.get(), step, 1.0F));
      EXPECT_GSV(gsvHookReduce(hook.get(), 0, device, kCount, gsvFloat32, stream, &event));
      EXPECT_GSV(gsvHookWait(hook.get(), &event));
      EXPECT_GSV(gsvHookFinish(hook.get(), &outcome));
      EXPECT_EQ(outcome.pending, is_pending ? 1U : 0U);
      cudaMemcpyAsync(host, device, kCount * sizeof(float), cudaMemcpyDeviceToHost, stream);
      EXPECT_GSV(gsvHookSynchronize(hook.get(), &outcome));
      EXPECT_EQ(outcome.committed, 1U);
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      all.insert(all.end(), host, host + kCount);
    }
    cudaFree(device);
    cudaFreeHost(host);
  }
  cudaStreamDestroy(stream);
  return all;
}

bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class CCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices < kRanks)
      GTEST_SKIP() << "needs " << kRanks << " devices";
  }
  /// `make_comm(rank, host)`: a communicator for device memory, or null to take the host's.
  void expect_bits_of_the_cpu(std::function<CommPtr(int rank, gsvComm_t host)> const& make_comm) {
    std::vector<CommPtr> const host = make_local_comms(kRanks);
    std::vector<CommPtr> const reference = make_local_comms(kRanks);
    for_each_rank(kRanks, [&](int rank) {
      auto const r = static_cast<std::size_t>(rank);
      ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
      CommPtr const own = make_comm(rank, host[r].get());
      gsvComm_t const comm = own == nullptr ? host[r].get() : own.get();
      std::vector<float> const actual = train_on_device(comm, rank, own != nullptr);
      EXPECT_TRUE(same_bits(actual, train_on_cpu(reference[r].get(), rank)));
    });
  }
  static constexpr int kRanks = 2;
};

TEST_F(CCudaTest, OverThreadsThroughPinnedMemory) {
  expect_bits_of_the_cpu([](int, gsvComm_t) { return CommPtr(); });
}

TEST_F(CCudaTest, OverNcclMadeOverAnotherCommunicator) {
  expect_bits_of_the_cpu([](int, gsvComm_t host) {
    gsvComm_t comm = nullptr;
    EXPECT_GSV(gsvCommInitNcclOver(&comm, host));
    return CommPtr(comm);
  });
}

TEST_F(CCudaTest, OverNcclMadeByAnId) {
  char id[GSV_NCCL_ID_BYTES];
  ASSERT_GSV(gsvNcclGetUniqueId(id));
  expect_bits_of_the_cpu([&](int rank, gsvComm_t) {
    gsvComm_t comm = nullptr;
    EXPECT_GSV(gsvCommInitNccl(&comm, kRanks, id, rank));
    std::int32_t told = -1;
    EXPECT_GSV(gsvCommUserRank(comm, &told));
    EXPECT_EQ(told, rank);
    return CommPtr(comm);
  });
  gsvComm_t comm = nullptr;
  EXPECT_EQ(gsvCommInitNccl(&comm, 2, id, 2), gsvInvalidArgument);
  EXPECT_EQ(gsvCommInitNcclBorrowed(&comm, nullptr), gsvInvalidArgument);
}

TEST_F(CCudaTest, AHostGradientIsRefusedAndSoIsASpecThatDoesNotRunThere) {
  std::vector<CommPtr> const comms = make_local_comms(1);
  ContextPtr const context = cuda_context();
  HookPtr const other = make_hook(comms[0].get(), context.get(), "int8 | zstd");
  EXPECT_EQ(plan_one(other.get(), kCount), gsvInvalidArgument);
  EXPECT_NE(std::string(gsvGetLastError()).find("backend=cuda"), std::string::npos);
  EXPECT_EQ(gsvHookReplay(other.get(), 1, 1.0F), gsvInvalidUsage);
  ContextPtr const host_context = make_context();
  HookPtr const on_host = make_hook(comms[0].get(), host_context.get(), "int8");
  std::uint32_t const* word = nullptr;
  EXPECT_GSV(gsvHookCommittedWord(on_host.get(), &word));
  EXPECT_EQ(word, nullptr);
}

}  // namespace
}  // namespace gradsieve::testing
