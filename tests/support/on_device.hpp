// SPDX-License-Identifier: Apache-2.0
// Host arrays for the time of a CUDA kernel: copied to guarded device memory at any alignment, and
// back, all on a stream of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "gradsieve/context.hpp"
#include "gradsieve/memory.hpp"

namespace gradsieve::testing {

inline void require(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

/// The small part of a test that also runs in other orders, with other streams and other PTX.
[[nodiscard]] inline bool is_quick_subset() {
  char const* const subset = std::getenv("GRADSIEVE_CUDA_SUBSET");
  return subset != nullptr && std::string_view(subset) == "quick";
}

/// Where kernels are interpreted, sizes and repetitions are small.
[[nodiscard]] inline bool is_emulated() {
  int device = 0;
  cudaDeviceProp properties;
  require(cudaGetDevice(&device));
  require(cudaGetDeviceProperties(&properties, device));
  return std::string_view(properties.name).find("cudasim") != std::string_view::npos;
}

/// A stream that waits for no other one, with step words, workspace and an error of its own.
class CudaStep {
 public:
  explicit CudaStep(std::size_t workspace_bytes = 0) {
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    words_ = Buffer(sizeof(StepWords), device_memory(), stream());
    memory_ = Buffer(workspace_bytes, device_memory(), stream());
    workspace_ = Workspace(memory_.bytes());
  }
  ~CudaStep() {
    words_ = {};
    memory_ = {};
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  CudaStep(CudaStep const&) = delete;
  CudaStep& operator=(CudaStep const&) = delete;

  [[nodiscard]] Stream stream() const noexcept { return {stream_}; }
  [[nodiscard]] cudaStream_t cuda_stream() const noexcept { return stream_; }
  [[nodiscard]] ExecContext context() noexcept {
    ExecContext ctx;
    ctx.backend = Backend::cuda;
    ctx.stream = stream();
    ctx.words = words();
    ctx.workspace = &workspace_;
    ctx.device_error = &error_;
    return ctx;
  }
  [[nodiscard]] StepWords* words() const noexcept { return words_.as<StepWords>().data(); }
  void set_words(StepWords const& words) {
    require(cudaMemcpyAsync(words_.data(), &words, sizeof words, cudaMemcpyHostToDevice, stream_));
    wait();
  }
  /// Waits; what the kernels left.
  [[nodiscard]] StepWords read_words() {
    StepWords words;
    require(cudaMemcpyAsync(&words, words_.data(), sizeof words, cudaMemcpyDeviceToHost, stream_));
    wait();
    return words;
  }
  void wait() { require(cudaStreamSynchronize(stream_)); }
  [[nodiscard]] Status const& error() const noexcept { return error_; }

 private:
  cudaStream_t stream_ = nullptr;
  Buffer words_;
  Buffer memory_;
  Workspace workspace_;
  Status error_;
};

/// `count` elements on the device, `offset_bytes` behind a multiple of 256, with canaries around.
template <typename T>
class OnDevice {
 public:
  OnDevice(CudaStep& step, std::span<T const> values, std::size_t offset_bytes = 0)
      : step_(&step),
        count_(values.size()),
        begin_(kGuardBytes + offset_bytes),
        memory_(begin_ + values.size_bytes() + kGuardBytes, device_memory(), step.stream()) {
    std::vector<std::byte> bytes(memory_.num_bytes(), kCanary);
    if (count_ != 0) std::memcpy(bytes.data() + begin_, values.data(), values.size_bytes());
    require(cudaMemcpyAsync(memory_.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice,
                            step.cuda_stream()));
    step.wait();  // the bytes go
  }
  OnDevice(CudaStep& step, std::vector<T> const& values, std::size_t offset_bytes = 0)
      : OnDevice(step, std::span<T const>(values), offset_bytes) {}

  [[nodiscard]] std::span<T> span() const noexcept {
    return {reinterpret_cast<T*>(memory_.data() + begin_), count_};
  }
  [[nodiscard]] T* data() const noexcept { return span().data(); }

  /// Waits for the stream.
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(count_);
    std::vector<std::byte> const bytes = all_bytes();
    if (count_ != 0) std::memcpy(values.data(), bytes.data() + begin_, count_ * sizeof(T));
    return values;
  }
  /// True if nothing was stored before or behind.
  [[nodiscard]] bool intact() const {
    std::vector<std::byte> const bytes = all_bytes();
    std::span<std::byte const> const all(bytes);
    auto const is_canary = [](std::byte b) { return b == kCanary; };
    return std::ranges::all_of(all.first(begin_), is_canary) &&
           std::ranges::all_of(all.last(kGuardBytes), is_canary);
  }

 private:
  static constexpr std::byte kCanary{0xC5};
  static constexpr std::size_t kGuardBytes = 256;

  [[nodiscard]] std::vector<std::byte> all_bytes() const {
    std::vector<std::byte> bytes(memory_.num_bytes());
    require(cudaMemcpyAsync(bytes.data(), memory_.data(), bytes.size(), cudaMemcpyDeviceToHost,
                            step_->cuda_stream()));
    step_->wait();
    return bytes;
  }

  CudaStep* step_;
  std::size_t count_;
  std::size_t begin_;
  Buffer memory_;
};

/// The step ended without an error of the runtime or of a kernel's launch.
[[nodiscard]] inline ::testing::AssertionResult went_well(CudaStep& step) {
  step.wait();
  if (!step.error().ok()) return ::testing::AssertionFailure() << step.error().message();
  return ::testing::AssertionSuccess();
}

/// Every bit equal; names the first element that is not.
template <typename T>
[[nodiscard]] ::testing::AssertionResult same_bytes(std::vector<T> const& expected,
                                                    std::vector<T> const& actual) {
  if (expected.size() != actual.size()) {
    return ::testing::AssertionFailure()
           << "expected " << expected.size() << " elements, not " << actual.size();
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&expected[i], &actual[i], sizeof(T)) == 0) continue;
    auto result = ::testing::AssertionFailure() << "element " << i << " of " << expected.size();
    unsigned char bytes[2][sizeof(T)];
    std::memcpy(bytes[0], &expected[i], sizeof(T));
    std::memcpy(bytes[1], &actual[i], sizeof(T));
    for (int side : {0, 1}) {
      result << (side == 0 ? ": expected bytes" : ", not");
      for (unsigned char const byte : bytes[side]) result << ' ' << std::hex << int{byte};
    }
    return result;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace gradsieve::testing
