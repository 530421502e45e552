// SPDX-License-Identifier: Apache-2.0
// Device memory in stream order, and pinned host memory. The only file of core that sees CUDA.
#include <cstring>
#include <string>

#include "gradsieve/memory.hpp"

#ifdef GRADSIEVE_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace gradsieve {
namespace {

#ifdef GRADSIEVE_HAVE_CUDA

/// Throws unless the call succeeded, and clears the runtime's memory of it.
void check(cudaError_t error, std::size_t num_bytes) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  std::string const reason = std::string(" (") + cudaGetErrorString(error) + ")";
  if (error == cudaErrorMemoryAllocation) {
    throw Error(Code::out_of_memory,
                "CUDA has no room for a block of " + std::to_string(num_bytes) + " bytes" + reason);
  }
  throw Error(Code::device_error, "CUDA memory cannot be had" + reason);
}

cudaStream_t stream_of(Stream stream) noexcept { return static_cast<cudaStream_t>(stream.handle); }

// Never null, also for 0 bytes, as host memory.
std::size_t at_least_one(std::size_t num_bytes) noexcept { return num_bytes == 0 ? 1 : num_bytes; }

class DeviceMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t num_bytes, Stream stream) override {
    void* pointer = nullptr;
    check(cudaMallocAsync(&pointer, at_least_one(num_bytes), stream_of(stream)), num_bytes);
    cudaError_t const filled =
        cudaMemsetAsync(pointer, 0, at_least_one(num_bytes), stream_of(stream));
    if (filled != cudaSuccess) deallocate(pointer, num_bytes, stream);
    check(filled, num_bytes);
    return pointer;
  }
  // A failure here has been seen by whoever used the memory, or the process is ending.
  void deallocate(void* pointer, std::size_t, Stream stream) noexcept override {
    if (cudaFreeAsync(pointer, stream_of(stream)) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
    }
  }
  [[nodiscard]] Device device() const noexcept override { return Device::cuda; }
};

class PinnedMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t num_bytes, Stream) override {
    void* pointer = nullptr;
    check(cudaMallocHost(&pointer, at_least_one(num_bytes)), num_bytes);
    std::memset(pointer, 0, at_least_one(num_bytes));
    return pointer;
  }
  void deallocate(void* pointer, std::size_t, Stream) noexcept override {
    if (cudaFreeHost(pointer) != cudaSuccess) static_cast<void>(cudaGetLastError());
  }
};

#else

/// In place of either.
class NoCudaMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t, Stream) override {
    throw Error(
        Code::not_built,
        "this build has no CUDA: expected a build with GRADSIEVE_CUDA=ON, or host_memory()");
  }
  void deallocate(void*, std::size_t, Stream) noexcept override {}
};
using DeviceMemory = NoCudaMemory;
using PinnedMemory = NoCudaMemory;

#endif

}  // namespace

// Never destroyed, like host_memory().
MemoryResource& device_memory() noexcept {
  static DeviceMemory& resource = *new DeviceMemory;
  return resource;
}

MemoryResource& pinned_memory() noexcept {
  static PinnedMemory& resource = *new PinnedMemory;
  return resource;
}

}  // namespace gradsieve
