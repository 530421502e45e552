// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "core/device_architecture.hpp"
#include "core/device_stream.hpp"

#ifdef GRADSIEVE_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace gradsieve {

#ifdef GRADSIEVE_HAVE_CUDA

namespace {

Status status_of(cudaError_t error) noexcept {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return {Code::device_error, cudaGetErrorString(error)};  // its texts are static
}

void check(cudaError_t error, char const* what) {
  if (Status const status = status_of(error); !status.ok()) {
    throw Error(status.code(),
                std::string("CUDA gives no ") + what + " (" + status.message() + ")");
  }
}

cudaStream_t stream_of(Stream stream) noexcept { return static_cast<cudaStream_t>(stream.handle); }
cudaEvent_t event_of(void* handle) noexcept { return static_cast<cudaEvent_t>(handle); }

void check_architecture(int device) {
  int major = 0;
  int minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "device");
  if (architectures_run_on(GSV_CUDA_ARCHITECTURES, 10 * major + minor)) return;
  std::string const found = std::to_string(10 * major + minor);
  throw Error(Code::unsupported, "device " + std::to_string(device) + " is of architecture " +
                                     found +
                                     ", and this library has kernels for " GSV_CUDA_ARCHITECTURES
                                     "; build it with -D CMAKE_CUDA_ARCHITECTURES=" +
                                     found);
}

}  // namespace

OwnStream::OwnStream(Stream beside) {
  int before = 0;
  int device = 0;
  check(cudaGetDevice(&before), "device");
  check(cudaStreamGetDevice(stream_of(beside), &device), "device of a stream");
  check_architecture(device);
  check(cudaSetDevice(device), "device");
  cudaStream_t made = nullptr;
  cudaError_t const error = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
  static_cast<void>(cudaSetDevice(before));
  check(error, "stream");
  stream_ = {made};
}

OwnStream::~OwnStream() {
  if (cudaStreamDestroy(stream_of(stream_)) != cudaSuccess) static_cast<void>(cudaGetLastError());
}

StreamEvent::StreamEvent() {
  cudaEvent_t made = nullptr;
  check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "event");
  handle_ = made;
}

StreamEvent::~StreamEvent() {
  if (handle_ != nullptr && cudaEventDestroy(event_of(handle_)) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
  }
}

Status StreamEvent::record(Stream stream) noexcept {
  return status_of(cudaEventRecord(event_of(handle_), stream_of(stream)));
}

Status StreamEvent::hold(Stream stream) noexcept {
  return status_of(cudaStreamWaitEvent(stream_of(stream), event_of(handle_), 0));
}

Status StreamEvent::wait() const noexcept {
  return status_of(cudaEventSynchronize(event_of(handle_)));
}

Status copy_in_order(Stream stream, void const* from, void* to, std::size_t num_bytes) noexcept {
  if (num_bytes == 0) return {};
  return status_of(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDefault, stream_of(stream)));
}

Status synchronize(Stream stream) noexcept {
  return status_of(cudaStreamSynchronize(stream_of(stream)));
}

bool is_capturing(Stream stream) noexcept {
  cudaStreamCaptureStatus what = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream_of(stream), &what) == cudaSuccess &&
         what == cudaStreamCaptureStatusActive;
}

#else

namespace {

constexpr Status kNotBuilt = {Code::not_built, "this build has no CUDA"};

[[noreturn]] void refuse() {
  throw Error(Code::not_built,
              "this build has no CUDA: expected a build with GRADSIEVE_CUDA=ON, or backend=cpu");
}

}  // namespace

OwnStream::OwnStream(Stream) { refuse(); }
OwnStream::~OwnStream() = default;
StreamEvent::StreamEvent() { refuse(); }
StreamEvent::~StreamEvent() = default;
Status StreamEvent::record(Stream) noexcept { return kNotBuilt; }
Status StreamEvent::hold(Stream) noexcept { return kNotBuilt; }
Status StreamEvent::wait() const noexcept { return kNotBuilt; }
Status copy_in_order(Stream, void const*, void*, std::size_t) noexcept { return kNotBuilt; }
Status synchronize(Stream) noexcept { return kNotBuilt; }
bool is_capturing(Stream) noexcept { return false; }

#endif

}  // namespace gradsieve
