// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.cuh"
#include "kernels/header_fields.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

/// A thread a byte.
struct HeaderPolicy {
  static constexpr unsigned threads = sizeof(PayloadHeader), min_blocks = 1;
};

__global__ void __launch_bounds__(HeaderPolicy::threads, HeaderPolicy::min_blocks)
    write_header_kernel(PayloadHeader const header, StepWords const* words,
                        StepValue<std::uint64_t> const body_bytes, std::byte* payload) {
  __shared__ PayloadHeader whole;
  if (threadIdx.x == 0) whole = completed(header, *words, body_bytes);
  __syncthreads();
  payload[threadIdx.x] = reinterpret_cast<std::byte const*>(&whole)[threadIdx.x];
}

}  // namespace

void write_header(ExecContext const& ctx, PayloadHeader const& header,
                  StepValue<std::uint64_t> body_bytes, std::span<std::byte> payload) noexcept {
  launch(ctx, 1, HeaderPolicy::threads, 0, write_header_kernel, header, ctx.words, body_bytes,
         payload.data());
}

}  // namespace gradsieve::kernels::cuda
