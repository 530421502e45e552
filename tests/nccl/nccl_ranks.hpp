// SPDX-License-Identifier: Apache-2.0
// Ranks that have a device each, and what they do with its memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "gradsieve/device_exchange.hpp"
#include "gradsieve/nccl.hpp"

#include "tests/support/on_device.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {

/// NCCL wants a device for each rank.
[[nodiscard]] inline bool has_devices(int num_ranks) {
  int num_devices = 0;
  return cudaGetDeviceCount(&num_devices) == cudaSuccess && num_devices >= num_ranks;
}

/// Ranks as threads, each with its device current.
inline void run_device_ranks(int world_size, std::function<void(Transport& host)> const& body) {
  test::run_ranks(world_size, [&](Transport& host) {
    require(cudaSetDevice(host.rank()));
    body(host);
  });
}

/// A rank's transport with a stream on its device.
class NcclRank {
 public:
  explicit NcclRank(Transport& host, NcclOptions options = {})
      : transport_(make_nccl_transport(host, options)) {}

  [[nodiscard]] Transport& transport() noexcept { return *transport_; }
  [[nodiscard]] DeviceExchange& exchange() noexcept { return *transport_->device_exchange(); }
  [[nodiscard]] CudaStep& step() noexcept { return step_; }
  [[nodiscard]] Stream stream() const noexcept { return step_.stream(); }
  [[nodiscard]] int rank() const noexcept { return transport_->rank(); }
  [[nodiscard]] int world_size() const noexcept { return transport_->world_size(); }

 private:
  std::unique_ptr<Transport> transport_;
  CudaStep step_;
};

/// An event of the current device.
class CudaEvent {
 public:
  CudaEvent() { require(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~CudaEvent() { static_cast<void>(cudaEventDestroy(event_)); }
  CudaEvent(CudaEvent const&) = delete;
  CudaEvent& operator=(CudaEvent const&) = delete;

  void record(Stream stream) {
    require(cudaEventRecord(event_, static_cast<cudaStream_t>(stream.handle)));
  }
  void hold_back(Stream stream) {
    require(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.handle), event_, 0));
  }
  [[nodiscard]] bool reached() const { return cudaEventQuery(event_) == cudaSuccess; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Calls and waits as a hook does: it asks the stream and the exchange in turn until the deadline.
inline Status finish(DeviceExchange& exchange, Stream stream, std::chrono::milliseconds patience,
                     std::function<Status()> const& call) {
  Deadline const deadline = Clock::now() + patience;
  if (Status const status = call(); !status.ok()) return status;
  CudaEvent event;
  event.record(stream);
  while (!event.reached()) {
    if (Status const status = exchange.check(); !status.ok()) return status;
    if (Clock::now() >= deadline) return {Code::timeout, "the stream did not come to its end"};
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return exchange.check();
}

/// Differs by rank, place and purpose.
[[nodiscard]] inline std::byte byte_of(int rank, std::size_t index, int purpose = 0) {
  std::size_t const mixed = (index + 1) * 2654435761u + static_cast<std::size_t>(rank) * 40503u +
                            static_cast<std::size_t>(purpose) * 97u;
  return static_cast<std::byte>((mixed >> 7) & 0xff);
}

[[nodiscard]] inline std::vector<std::byte> bytes_of(int rank, std::size_t count, int purpose = 0) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = byte_of(rank, i, purpose);
  return bytes;
}

}  // namespace gradsieve::testing
