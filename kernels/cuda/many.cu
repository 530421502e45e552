// SPDX-License-Identifier: Apache-2.0
// Many small tensors in one launch: a thread block takes a run of one of them, found in a table.
#include "kernels/cuda/compensated.cuh"
#include "kernels/cuda/dequantize.cuh"
#include "kernels/cuda/quantize_run.cuh"
#include "kernels/many_ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

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

__device__ bool codes_are_aligned(std::byte const* codes, int bits) {
  return reinterpret_cast<std::uintptr_t>(codes) % (bits == 8 ? 4 : 2) == 0;
}

struct CompensateManyPolicy {
  static constexpr unsigned threads = TilePolicy::threads, items_per_thread = 4, min_blocks = 4;
};
// Fewer loads in flight: scales and codes beside the sums, in both widths, leave no registers.
struct DequantizeManyPolicy {
  static constexpr unsigned threads = TilePolicy::threads, items_per_thread = 2, min_blocks = 4;
};

/// One run of an operation on arrays, in quads or element by element.
template <typename Policy, typename Operation>
__device__ void stream_run(Operation const& operation, Segment const& segment, std::uint64_t run,
                           std::uint64_t run_elements, bool is_aligned, bool& seen) {
  std::uint64_t const begin = (run - segment.first_run) * run_elements;
  std::uint64_t const size = min(run_elements, segment.num_elements - begin);
  constexpr unsigned kTurn = Policy::threads * Policy::items_per_thread;
  if (is_aligned && run_elements % kQuad == 0) {
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

template <typename T>
__global__ void __launch_bounds__(CompensateManyPolicy::threads, CompensateManyPolicy::min_blocks)
    compensate_many_kernel(Runs const runs, StepValue<float> carry, StepWords* words) {
  __shared__ Segment segment;
  carry = carry.get();
  bool non_finite = false;
  for (std::uint64_t run = blockIdx.x; run < runs.count; run += gridDim.x) {
    runs.fetch(run, segment);
    auto const* const gradient = static_cast<T const*>(segment.gradient);
    Compensate<T> const operation = {gradient, segment.residual_in, segment.residual_out, carry,
                                     words};
    stream_run<CompensateManyPolicy>(
        operation, segment, run, kTileElements,
        all_quad_aligned(gradient, segment.residual_in, segment.residual_out), non_finite);
  }
  raise(words, kStepNonFinite, non_finite);
}

/// What does not differ between the segments.
struct ManyCoding {
  std::uint64_t run_elements;
  unsigned block_elements;
  int bits;
  bool is_stochastic;
  StepValue<float> carry;
  StepValue<std::uint64_t> step;
  StepWords* words;

  [[nodiscard]] __device__ Coding of(Segment const& segment) const {
    return {.num_elements = segment.num_elements,
            .run_elements = run_elements,
            .block_elements = block_elements,
            .bits = bits,
            .is_stochastic = is_stochastic,
            .key = {segment.key, step, segment.first_element},
            .codes = segment.codes,
            .scales = segment.scales,
            .residual = segment.residual_out,
            .words = words};
  }
};

template <typename T>
__global__ void __launch_bounds__(TilePolicy::threads, TilePolicy::min_blocks)
    quantize_many_kernel(Runs const runs, ManyCoding many) {
  extern __shared__ std::uint32_t block_words[];
  __shared__ Segment segment;
  many.carry = many.carry.get();
  many.step = many.step.get();
  bool non_finite = false;
  for (std::uint64_t run = blockIdx.x; run < runs.count; run += gridDim.x) {
    runs.fetch(run, segment);
    auto const* const gradient = static_cast<T const*>(segment.gradient);
    FusedSource<T> const source = {gradient, segment.residual_in, many.carry};
    bool const is_aligned = many.run_elements % 4 == 0 &&
                            codes_are_aligned(segment.codes, many.bits) &&
                            all_quad_aligned(gradient, segment.residual_in, segment.residual_out);
    std::uint64_t const own_run = run - segment.first_run;
    if (is_aligned) {
      quantize_run<true>(many.of(segment), source, own_run, block_words, non_finite);
    } else {
      quantize_run<false>(many.of(segment), source, own_run, block_words, non_finite);
    }
  }
  raise(many.words, kStepNonFinite, non_finite);
}

__global__ void __launch_bounds__(DequantizeManyPolicy::threads, DequantizeManyPolicy::min_blocks)
    dequantize_add_many_kernel(Runs const runs, std::uint64_t run_elements, int bits,
                               std::uint64_t block_elements, float weight) {
  __shared__ Segment segment;
  bool seen = false;
  for (std::uint64_t run = blockIdx.x; run < runs.count; run += gridDim.x) {
    runs.fetch(run, segment);
    auto const* const scales = reinterpret_cast<std::byte const*>(segment.scales);
    DequantizeAdd const operation = {
        {}, segment.codes, BlockScales(scales, block_elements), segment.accumulator, weight, bits};
    bool const is_aligned =
        codes_are_aligned(segment.codes, bits) && all_quad_aligned(segment.accumulator);
    stream_run<DequantizeManyPolicy>(operation, segment, run, run_elements, is_aligned, seen);
  }
}

/// body(T const*) with a null pointer of the element type.
template <typename Body>
void with_dtype(DType dtype, Body const& body) noexcept {
  with_elements(ConstTensorView(nullptr, 0, dtype), body);
}

}  // namespace

Flags compensate_many(ExecContext const& ctx, SegmentTable const& table, DType dtype,
                      StepValue<float> carry) noexcept {
  Runs const runs(table);
  if (runs.count == 0) return 0;
  with_dtype(dtype, [&]<typename T>(T const*) {
    launch(ctx, grid_of(runs.count), CompensateManyPolicy::threads, 0, compensate_many_kernel<T>,
           runs, carry, ctx.words);
  });
  return 0;
}

Flags quantize_many(ExecContext const& ctx, SegmentTable const& table, DType dtype,
                    StepValue<float> carry, int bits, std::uint64_t block_elements,
                    Rounding rounding, StepValue<std::uint64_t> step) noexcept {
  Runs const runs(table);
  if (runs.count == 0) return 0;
  ManyCoding const many = {.run_elements = run_elements(block_elements),
                           .block_elements = static_cast<unsigned>(block_elements),
                           .bits = bits,
                           .is_stochastic = rounding == Rounding::stochastic,
                           .carry = carry,
                           .step = step,
                           .words = ctx.words};
  with_dtype(dtype, [&]<typename T>(T const*) {
    launch(ctx, grid_of(runs.count), TilePolicy::threads, run_shared_bytes(block_elements),
           quantize_many_kernel<T>, runs, many);
  });
  return 0;
}

void dequantize_add_many(ExecContext const& ctx, SegmentTable const& table, int bits,
                         std::uint64_t block_elements, float weight) noexcept {
  Runs const runs(table);
  if (runs.count == 0) return;
  launch(ctx, grid_of(runs.count), DequantizeManyPolicy::threads, 0, dequantize_add_many_kernel,
         runs, run_elements(block_elements), bits, block_elements, weight);
}

}  // namespace gradsieve::kernels::cuda
