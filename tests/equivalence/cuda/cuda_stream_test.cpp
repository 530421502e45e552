// SPDX-License-Identifier: Apache-2.0
// Streams, devices, graphs and failures: what holds for every kernel because of how it is launched.
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/equivalence/cuda/cuda_cases.hpp"

namespace gradsieve::testing {
namespace {

constexpr std::size_t kCount = 3000;

std::vector<float> numbers(std::uint64_t seed) {
  return make_gradient(Shape::heavy_tailed, kCount, seed);
}

TEST(CudaStreams, AnEventIsAllThatOrdersTwoOfThem) {
  CudaStep first;
  CudaStep second;
  auto const before = numbers(1);
  OnDevice<float> const values(first, before);
  OnDevice<float> const sum(second, numbers(2));
  cudaEvent_t scaled;
  require(cudaEventCreateWithFlags(&scaled, cudaEventDisableTiming));
  auto scaled_values = before;
  auto expected = numbers(2);
  kernels::ref::scale({}, 0.5F, scaled_values);
  kernels::ref::add_scaled({}, std::span<float const>(scaled_values), 0.25F, expected);

  kernels::cuda::scale(first.context(), 0.5F, values.span());
  require(cudaEventRecord(scaled, first.cuda_stream()));
  require(cudaStreamWaitEvent(second.cuda_stream(), scaled, 0));
  kernels::cuda::add_scaled(second.context(), {values.data(), kCount, DType::f32}, 0.25F,
                            sum.span());

  ASSERT_TRUE(went_well(second));
  EXPECT_TRUE(same_bytes(expected, sum.read()));
  ASSERT_TRUE(went_well(first));
  require(cudaEventDestroy(scaled));
}

// The caller's current device need not be that of the stream.
TEST(CudaDevices, StreamC71KernelsRunOnTheDeviceOfTheirStream) {
  int num_devices = 0;
  require(cudaGetDeviceCount(&num_devices));
  if (num_devices < 2) GTEST_SKIP() << "one device";
  require(cudaSetDevice(1));
  CudaStep step(kernels::sum_squares_workspace_bytes(kCount));
  OnDevice<float> const values(step, numbers(1));
  OnDevice<double> const sum(step, std::vector<double>{0});
  double expected = 0;
  kernels::ref::sum_squares({}, numbers(1), &expected);

  require(cudaSetDevice(0));
  kernels::cuda::sum_squares(step.context(), values.span(), sum.data());

  int current = -1;
  require(cudaGetDevice(&current));
  EXPECT_EQ(current, 0);
  ASSERT_TRUE(went_well(step));
  EXPECT_TRUE(same_bytes({expected}, sum.read()));
}

TEST(CudaFailures, TheFirstIsKeptAndNothingRunsAfterIt) {
  CudaStep step;  // without the workspace that a sum needs
  auto const before = numbers(1);
  OnDevice<float> const values(step, before);
  OnDevice<double> const sum(step, std::vector<double>{-1});

  kernels::cuda::sum_squares(step.context(), values.span(), sum.data());
  kernels::cuda::scale(step.context(), 0.5F, values.span());

  step.wait();
  EXPECT_EQ(step.error().code(), Code::internal);
  EXPECT_EQ(sum.read().front(), -1);
  EXPECT_TRUE(same_bytes(before, values.read()));
}

TEST(CudaMemory, IsZeroedAlignedAndOfItsDevice) {
  CudaStep step;
  for (std::size_t const num_bytes : {0, 1, 100000}) {
    void* const block = device_memory().allocate(num_bytes, step.stream());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % Workspace::kAlignment, 0U);
    std::vector<unsigned char> bytes(num_bytes, 0xff);
    require(cudaMemcpyAsync(bytes.data(), block, num_bytes, cudaMemcpyDeviceToHost,
                            step.cuda_stream()));
    step.wait();
    EXPECT_EQ(bytes, std::vector<unsigned char>(num_bytes, 0));
    device_memory().deallocate(block, num_bytes, step.stream());

    auto* const pinned = static_cast<unsigned char*>(pinned_memory().allocate(num_bytes, {}));
    EXPECT_EQ(std::vector<unsigned char>(pinned, pinned + num_bytes),
              std::vector<unsigned char>(num_bytes, 0));
    pinned_memory().deallocate(pinned, num_bytes, {});
  }
  EXPECT_EQ(device_memory().device(), Device::cuda);
  EXPECT_EQ(pinned_memory().device(), Device::host);
}

TEST(CudaMemory, SaysThatThereIsNotEnough) {
  for (MemoryResource* const resource : {&device_memory(), &pinned_memory()}) {
    try {
      static_cast<void>(resource->allocate(std::size_t{1} << 60, {}));
      FAIL() << "expected an error";
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), Code::out_of_memory) << error.what();
    }
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

/// One step of a codec with feedback, as it is put on a stream or into a graph.
class CapturedStep {
 public:
  CapturedStep()
      : gradient_(step_, numbers(1)),
        residual_(step_, std::vector<float>(kCount)),
        sum_(step_, std::vector<float>(kCount)),
        codes_(step_, std::vector<std::byte>(kCount)),
        scales_(step_, std::vector<float>(kNumBlocks)),
        carry_(step_, std::vector<float>{1}) {}

  void enqueue() {
    ExecContext const ctx = step_.context();
    kernels::cuda::quantize_fused(
        ctx, {gradient_.data(), kCount, DType::f32},
        {residual_.span(), residual_.span(), StepValue<float>::in_word(carry_.data())}, 8, kBlock,
        kernels::Rounding::stochastic,
        {{3, 4}, StepValue<std::uint64_t>::in_word(&step_.words()->step), 0}, codes_.span(),
        scales_.span());
    kernels::cuda::dequantize_add(ctx, codes_.span(), std::as_bytes(scales_.span()).data(), 8,
                                  kBlock, 0.5F, sum_.span());
  }
  [[nodiscard]] cudaGraphExec_t capture() {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    require(cudaStreamBeginCapture(step_.cuda_stream(), cudaStreamCaptureModeThreadLocal));
    enqueue();
    require(cudaStreamEndCapture(step_.cuda_stream(), &graph));
    require(cudaGraphInstantiate(&executable, graph, 0));
    require(cudaGraphDestroy(graph));
    return executable;
  }
  /// What begin() does: new data and new words, none of which the graph knows.
  void begin(std::uint64_t step) {
    step_.set_words({.step = step});
    auto const gradient = numbers(10 + step);
    float const carry = step % 2 == 0 ? 0.5F : 2.0F;
    require(cudaMemcpyAsync(gradient_.data(), gradient.data(), kCount * 4, cudaMemcpyHostToDevice,
                            step_.cuda_stream()));
    require(cudaMemcpyAsync(carry_.data(), &carry, sizeof carry, cudaMemcpyHostToDevice,
                            step_.cuda_stream()));
    step_.wait();
  }
  void replay(cudaGraphExec_t graph) { require(cudaGraphLaunch(graph, step_.cuda_stream())); }

  [[nodiscard]] CudaStep& step() { return step_; }
  [[nodiscard]] std::pair<std::vector<float>, std::vector<float>> read() const {
    return {residual_.read(), sum_.read()};
  }

  /// The same in host memory.
  static void reference(std::uint64_t step, std::vector<float>& residual, std::vector<float>& sum) {
    std::vector<std::byte> codes(kCount);
    std::vector<float> scales(kNumBlocks);
    kernels::ref::quantize_fused({}, std::span<float const>(numbers(10 + step)),
                                 {residual, residual, step % 2 == 0 ? 0.5F : 2.0F}, 8, kBlock,
                                 kernels::Rounding::stochastic, {{3, 4}, step, 0}, codes, scales);
    kernels::ref::dequantize_add({}, codes, std::as_bytes(std::span(scales)).data(), 8, kBlock,
                                 0.5F, sum);
  }

 private:
  static constexpr std::uint64_t kBlock = 256;
  static constexpr std::size_t kNumBlocks = (kCount + kBlock - 1) / kBlock;

  CudaStep step_;
  OnDevice<float> gradient_;
  OnDevice<float> residual_;
  OnDevice<float> sum_;
  OnDevice<std::byte> codes_;
  OnDevice<float> scales_;
  OnDevice<float> carry_;
};

TEST(CudaGraphs, ReplayWithNewDataStepsAndFactors) {
  CapturedStep captured;
  cudaGraphExec_t const graph = captured.capture();
  std::vector<float> residual(kCount);
  std::vector<float> sum(kCount);
  for (std::uint64_t step = 0; step < 7; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    CapturedStep::reference(step, residual, sum);

    captured.begin(step);
    captured.replay(graph);

    ASSERT_TRUE(went_well(captured.step()));
    auto const [actual_residual, actual_sum] = captured.read();
    ASSERT_TRUE(same_bytes(residual, actual_residual));
    ASSERT_TRUE(same_bytes(sum, actual_sum));
  }
  require(cudaGraphExecDestroy(graph));
}

}  // namespace
}  // namespace gradsieve::testing
