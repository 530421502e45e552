// SPDX-License-Identifier: Apache-2.0
// What launches for many small tensors share: a thread block takes a run of one of them, found in a
// table.
#pragma once

#include "kernels/cuda/stream.cuh"
#include "kernels/cuda/tile.cuh"
#include "kernels/many_ops.hpp"

namespace gradsieve::kernels::cuda {

struct Runs {
  Segment const* segments;
  std::uint32_t const* segment_of_run;
  std::uint64_t count;

  explicit Runs(SegmentTable const& table) noexcept
      : segments(table.segments.data()),
        segment_of_run(table.segment_of_run.data()),
        count(table.segment_of_run.size()) {}

  /// Reads the segment of a run once for all threads, which all call it.
  __device__ void fetch(std::uint64_t run, Segment& shared) const {
    static_assert(sizeof(Segment) % sizeof(std::uint64_t) == 0);
    constexpr unsigned kWords = sizeof(Segment) / sizeof(std::uint64_t);
    __syncthreads();  // the segment before is done with
    if (threadIdx.x < kWords) {
      auto const* const from =
          reinterpret_cast<std::uint64_t const*>(segments + segment_of_run[run]);
      reinterpret_cast<std::uint64_t*>(&shared)[threadIdx.x] = from[threadIdx.x];
    }
    __syncthreads();
  }
};

template <typename... T>
__device__ bool all_quad_aligned(T const*... arrays) {
  return ((reinterpret_cast<std::uintptr_t>(arrays) % (4 * sizeof(T)) == 0) && ...);
}

__device__ inline bool codes_are_aligned(std::byte const* codes, int bits) {
  return reinterpret_cast<std::uintptr_t>(codes) % (bits == 8 ? 4 : 2) == 0;
}

/// An operation on the elements [begin, begin + size), in quads or one by one. A turn of quads
/// begins at a multiple of four.
template <typename Policy, typename Operation>
__device__ void stream_part(Operation const& operation, std::uint64_t begin, std::uint64_t size,
                            bool is_aligned, bool& seen) {
  constexpr unsigned kTurn = Policy::threads * Policy::items_per_thread;
  if (is_aligned) {
    for (std::uint64_t first = 0; first < size / kQuad; first += kTurn) {
      stream_tile<Policy, kQuad>(operation, begin, first, size / kQuad, seen);
    }
    std::uint64_t const i = begin + size / kQuad * kQuad + threadIdx.x;
    if (i < begin + size) operation.template finish<1>(i, operation.template load<1>(i), seen);
    return;
  }
  for (std::uint64_t first = 0; first < size; first += kTurn) {
    stream_tile<Policy, 1>(operation, begin, first, size, seen);
  }
}

/// A run of a segment without blocks.
template <typename Policy, typename Operation>
__device__ void stream_run(Operation const& operation, Segment const& segment, std::uint64_t run,
                           bool is_aligned, bool& seen) {
  std::uint64_t const begin = (run - segment.first_run) * kTileElements;
  std::uint64_t const size = min(std::uint64_t{kTileElements}, segment.num_elements - begin);
  stream_part<Policy>(operation, begin, size, is_aligned, seen);
}

/// A sum that begins with zeros, if `is_first`.
template <typename Operation>
struct Opened : Operation {
  bool is_first;

  template <int kWidth>
  __device__ auto load(std::uint64_t i) const {
    auto result = Operation::template load_sent<kWidth>(i);
    if (!is_first) result.sum = cuda::load<kWidth>(Operation::accumulator + i);
    return result;
  }
};

/// Addresses of a segment's encode, in shared memory: in registers they would not fit.
template <typename G>
struct EncodedSegment {
  G const* gradient;
  float const* residual_in;  ///< null: zeros
  float* residual_out;
  std::byte* codes;
  float* scales;

  /// All threads call it, after fetch().
  __device__ void place(EncodedArrays const& arrays, Segment const& segment) {
    if (threadIdx.x == 0) {
      codes = arrays.bodies + segment.codes_begin;
      scales = reinterpret_cast<float*>(arrays.bodies + segment.scales_begin);
    }
    place(arrays, segment.in_gradient, segment.in_residual);
  }
  __device__ void place(EncodedArrays const& arrays, std::uint64_t in_gradient,
                        std::uint64_t in_residual) {
    if (threadIdx.x == 0) {
      gradient = static_cast<G const*>(arrays.gradient.data) + in_gradient;
      residual_in = arrays.residual_in == nullptr ? nullptr : arrays.residual_in + in_residual;
      residual_out = arrays.residual_out + in_residual;
    }
    __syncthreads();
  }
};

__device__ inline float* sums_of(DecodedArrays const& arrays, Segment const& segment) {
  return arrays.accumulator + (arrays.lies_as_residual ? segment.in_residual : segment.in_gradient);
}

/// The scales of a run, read once where they are few enough: each is asked for by many threads.
struct HeldScales {
  static constexpr unsigned kMost = 64;
  std::uint32_t words[kMost];
};

/// True if one of the run's scales is none; they go to `held` if they fit.
template <typename Policy>
__device__ bool hold_scales(std::byte const* scales, std::uint64_t count, HeldScales& held) {
  bool is_wrong = false;
  for (std::uint64_t i = threadIdx.x; i < count; i += Policy::threads) {
    std::uint32_t const word = reinterpret_cast<std::uint32_t const*>(scales)[i];
    is_wrong = is_wrong || word >= 0x7f800000U;
    if (count <= HeldScales::kMost) held.words[i] = word;
  }
  __syncthreads();
  return is_wrong;
}

/// body(T const*) with a null pointer of the element type.
template <typename Body>
void with_dtype(DType dtype, Body const& body) noexcept {
  with_elements(ConstTensorView(nullptr, 0, dtype), body);
}

}  // namespace gradsieve::kernels::cuda
