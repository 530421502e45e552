// SPDX-License-Identifier: Apache-2.0
// How kernels are started: on the context's stream, in a bounded grid, and with the first error
// kept where the host looks for it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "gradsieve/context.hpp"

namespace gradsieve::kernels::cuda {

// The shape of a kernel is a struct of its own with these members, and stands nowhere else:
//   threads            of a block
//   items_per_thread   loads in flight: vectors, or elements where nothing is aligned
//   min_blocks         resident on a multiprocessor; bounds the registers

/// Enough to fill any device several times over; what is more is done in a grid-stride loop.
inline constexpr std::uint64_t kMaxBlocks = 4096;

[[nodiscard]] constexpr std::uint64_t divide_up(std::uint64_t count, std::uint64_t by) noexcept {
  return count / by + (count % by != 0 ? 1 : 0);
}

[[nodiscard]] inline unsigned grid_of(std::uint64_t num_tiles) noexcept {
  return static_cast<unsigned>(std::clamp<std::uint64_t>(num_tiles, 1, kMaxBlocks));
}

[[nodiscard]] inline cudaStream_t stream_of(ExecContext const& ctx) noexcept {
  return static_cast<cudaStream_t>(ctx.stream.handle);
}

/// The device of the context's stream is the current one for the life of this object: the caller
/// may have left another one current.
class StreamDevice {
 public:
  explicit StreamDevice(ExecContext const& ctx) noexcept {
    int device = 0;
    if (cudaGetDevice(&before_) == cudaSuccess &&
        cudaStreamGetDevice(stream_of(ctx), &device) == cudaSuccess && device != before_) {
      is_other_ = cudaSetDevice(device) == cudaSuccess;
    }
  }
  ~StreamDevice() {
    if (is_other_) static_cast<void>(cudaSetDevice(before_));
  }
  StreamDevice(StreamDevice const&) = delete;
  StreamDevice& operator=(StreamDevice const&) = delete;

 private:
  int before_ = 0;
  bool is_other_ = false;
};

[[nodiscard]] inline bool has_failed(ExecContext const& ctx) noexcept {
  return ctx.device_error != nullptr && !ctx.device_error->ok();
}

inline constexpr Status kWorkspaceTooSmall = {Code::internal,
                                              "the workspace is smaller than planned"};

/// Keeps the first failure.
inline void keep_failure(ExecContext const& ctx, Status failure) noexcept {
  if (!failure.ok() && ctx.device_error != nullptr && !has_failed(ctx)) *ctx.device_error = failure;
}
inline void keep_error(ExecContext const& ctx, cudaError_t error) noexcept {
  if (error == cudaSuccess) return;
  keep_failure(ctx, {Code::device_error, cudaGetErrorString(error)});  // its texts are static
}

/// kernel<<<num_blocks, threads, shared_bytes>>>(arguments...) on the context's stream.
template <typename... Parameters, typename... Arguments>
void launch(ExecContext const& ctx, unsigned num_blocks, unsigned threads, std::size_t shared_bytes,
            void (*kernel)(Parameters...), Arguments const&... arguments) noexcept {
  if (has_failed(ctx)) return;
  StreamDevice const device(ctx);
  kernel<<<num_blocks, threads, shared_bytes, stream_of(ctx)>>>(arguments...);
  keep_error(ctx, ctx.device_error == nullptr ? cudaPeekAtLastError() : cudaGetLastError());
}

/// Sets bytes on the context's stream.
inline void fill(ExecContext const& ctx, void* memory, int byte, std::size_t num_bytes) noexcept {
  if (num_bytes == 0 || has_failed(ctx)) return;
  StreamDevice const device(ctx);
  keep_error(ctx, cudaMemsetAsync(memory, byte, num_bytes, stream_of(ctx)));
}

/// ORs `flag` into the step's flags if any thread of the block saw a reason. All threads call it.
__device__ inline void raise(StepWords* words, std::uint32_t flag, bool seen) {
  if (__syncthreads_or(seen ? 1 : 0) != 0 && threadIdx.x == 0 && words != nullptr) {
    atomicOr(&words->flags, flag);
  }
}

}  // namespace gradsieve::kernels::cuda
