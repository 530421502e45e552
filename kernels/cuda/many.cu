// SPDX-License-Identifier: Apache-2.0
// Many small tensors in one launch: a thread block takes a run of one of them, found in a table.
#include <type_traits>

#include "kernels/cuda/add_scaled.cuh"
#include "kernels/cuda/compensated.cuh"
#include "kernels/cuda/dequantize.cuh"
#include "kernels/cuda/many_runs.cuh"
#include "kernels/cuda/quantize_run.cuh"
#include "kernels/many_ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

struct EncodeValuesManyPolicy {
  static constexpr unsigned threads = TilePolicy::threads, items_per_thread = 2, min_blocks = 4;
};
struct AddValuesManyPolicy {
  static constexpr unsigned threads = TilePolicy::threads, items_per_thread = 4, min_blocks = 4;
};
// With a segment of its own, a run needs more registers than one of a single tensor: 64 are enough
// on sm_90, 80 are not on sm_80.
struct QuantizeManyPolicy {
  static constexpr unsigned threads = TilePolicy::threads, min_blocks = 2;
};
// Fewer loads in flight: scales and codes beside the sums, in both widths, leave no registers.
struct DequantizeManyPolicy {
  static constexpr unsigned threads = TilePolicy::threads, items_per_thread = 2, min_blocks = 4;
};

// --- values --------------------------------------------------------------------------------------

/// c, its value as a V, and what that leaves of c.
template <typename G, typename V>
struct EncodeValues {
  Compensate<G> source;  ///< writes nothing here
  V* values;
  RoundingKey key;
  bool is_stochastic;
  bool is_corrected;

  template <int kWidth>
  __device__ auto load(std::uint64_t i) const {
    return source.template load<kWidth>(i);
  }
  template <int kWidth, typename Loaded>
  __device__ void finish(std::uint64_t i, Loaded const& x, bool& non_finite) const {
    RandomQuad random = 0;
    if constexpr (std::is_same_v<V, BFloat16>) {
      if (is_stochastic) random = rounding_quad<kWidth>(key, i);
    }
    Pack<V, kWidth> sent;
    Pack<float, kWidth> rest;
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      float const g = widened(x.gradient.at[lane]);
      float const c =
          is_corrected ? g : compensated(g, source.carry.value, x.residual.at[lane], non_finite);
      sent.at[lane] = rounded(c, random, lane);
      float const decoded = 0.0F + widened(sent.at[lane]);  // -0 is decoded to +0
      rest.at[lane] = canonical(c - decoded);
    }
    store<kWidth>(values + i, sent);
    store<kWidth>(source.residual_out + i, rest);
  }

 private:
  [[nodiscard]] __device__ V rounded(float c, RandomQuad random, int lane) const {
    if constexpr (std::is_same_v<V, BFloat16>) {
      if (is_stochastic) return stochastic_bf16(c, random, lane);
    }
    return narrowed<V>(c, true);
  }
};

template <typename G, typename V>
__global__ void __launch_bounds__(EncodeValuesManyPolicy::threads,
                                  EncodeValuesManyPolicy::min_blocks)
    encode_values_many_kernel(Runs const runs, EncodedArrays const arrays, bool is_stochastic,
                              StepValue<std::uint64_t> step, StepWords* words) {
  __shared__ Segment segment;
  __shared__ EncodedSegment<G> at;
  StepValue<float> const carry = arrays.carry.get();
  step = step.get();
  bool non_finite = false;
  for (std::uint64_t run = blockIdx.x; run < runs.count; run += gridDim.x) {
    runs.fetch(run, segment);
    at.place(arrays, segment);
    auto* const values = reinterpret_cast<V*>(at.codes);
    EncodeValues<G, V> const operation = {
        {at.gradient, at.residual_in, at.residual_out, carry, words},
        values,
        {segment.key, step, segment.first_element},
        is_stochastic,
        arrays.is_corrected};
    stream_run<EncodeValuesManyPolicy>(
        operation, segment, run,
        all_quad_aligned(at.gradient, at.residual_in, at.residual_out, values), non_finite);
  }
  raise(words, kStepNonFinite, non_finite);
}

template <typename V>
__global__ void __launch_bounds__(AddValuesManyPolicy::threads, AddValuesManyPolicy::min_blocks)
    add_values_many_kernel(Runs const runs, DecodedArrays const arrays,
                           std::uint32_t const* only_if) {
  __shared__ Segment segment;
  if (only_if != nullptr && *only_if == 0) return;
  bool seen = false;
  for (std::uint64_t run = blockIdx.x; run < runs.count; run += gridDim.x) {
    runs.fetch(run, segment);
    auto const* const values = reinterpret_cast<V const*>(arrays.bodies + segment.codes_begin);
    float* const sums = sums_of(arrays, segment);
    Opened<AddScaled<V>> const operation = {{{}, values, sums, arrays.weight}, arrays.is_first};
    stream_run<AddValuesManyPolicy>(operation, segment, run, all_quad_aligned(values, sums), seen);
  }
}

// --- block quantizers ----------------------------------------------------------------------------

/// What does not differ between the segments.
struct ManyCoding {
  std::uint64_t run_elements;
  unsigned block_elements;
  int bits;
  bool is_stochastic;
  StepValue<std::uint64_t> step;
  StepWords* words;

  template <typename G>
  [[nodiscard]] __device__ Coding of(Segment const& segment, EncodedSegment<G> const& at) const {
    return {.num_elements = segment.num_elements,
            .run_elements = run_elements,
            .block_elements = block_elements,
            .bits = bits,
            .is_stochastic = is_stochastic,
            .key = {segment.key, step, segment.first_element},
            .codes = at.codes,
            .scales = at.scales,
            .residual = at.residual_out,
            .words = words};
  }
};

/// `Source` is FusedSource<G>, or CorrectedSource.
template <typename G, typename Source>
__global__ void __launch_bounds__(QuantizeManyPolicy::threads, QuantizeManyPolicy::min_blocks)
    quantize_many_kernel(Runs const runs, EncodedArrays const arrays, ManyCoding many) {
  extern __shared__ std::uint32_t block_words[];
  __shared__ Segment segment;
  __shared__ EncodedSegment<G> at;
  StepValue<float> const carry = arrays.carry.get();
  many.step = many.step.get();
  bool non_finite = false;
  for (std::uint64_t run = blockIdx.x; run < runs.count; run += gridDim.x) {
    runs.fetch(run, segment);
    at.place(arrays, segment);
    Source const source = source_of<Source>(at.gradient, at.residual_in, carry);
    bool const is_aligned = many.run_elements % 4 == 0 && codes_are_aligned(at.codes, many.bits) &&
                            all_quad_aligned(at.gradient, at.residual_in, at.residual_out);
    std::uint64_t const own_run = run - segment.first_run;
    if (is_aligned) {
      quantize_run<true>(many.of(segment, at), source, own_run, block_words, non_finite);
    } else {
      quantize_run<false>(many.of(segment, at), source, own_run, block_words, non_finite);
    }
  }
  raise(many.words, kStepNonFinite, non_finite);
}

/// A bit is set behind the segment's codes, where none may be. One thread looks.
__device__ bool has_stray_bits(Segment const& segment, std::byte const* bodies, int bits) {
  std::uint64_t const end =
      segment.codes_begin + (bits == 8 ? segment.num_elements : (segment.num_elements + 1) / 2);
  bool const has_half = bits == 4 && segment.num_elements % 2 != 0;
  bool found = has_half && static_cast<unsigned>(bodies[end - 1]) >> 4 != 0;
  for (std::uint64_t i = end; i < segment.scales_begin; ++i) {
    found = found || bodies[i] != std::byte{0};
  }
  return found;
}

__global__ void __launch_bounds__(DequantizeManyPolicy::threads, DequantizeManyPolicy::min_blocks)
    dequantize_add_many_kernel(Runs const runs, DecodedArrays const arrays,
                               std::uint64_t run_elements, int bits, std::uint64_t block_elements,
                               std::uint32_t const* only_if, StepWords* words) {
  __shared__ Segment segment;
  __shared__ HeldScales held;
  if (only_if != nullptr && *only_if == 0) return;
  bool seen = false;
  bool is_wrong = false;
  for (std::uint64_t run = blockIdx.x; run < runs.count; run += gridDim.x) {
    runs.fetch(run, segment);
    std::uint64_t const begin = (run - segment.first_run) * run_elements;
    std::uint64_t const size = min(run_elements, segment.num_elements - begin);
    std::uint64_t const num_scales = (size + block_elements - 1) / block_elements;
    std::byte const* scales =
        arrays.bodies + segment.scales_begin + begin / block_elements * sizeof(float);
    is_wrong = hold_scales<DequantizeManyPolicy>(scales, num_scales, held) || is_wrong;
    if (num_scales <= HeldScales::kMost) scales = reinterpret_cast<std::byte const*>(held.words);
    if (threadIdx.x == 0 && begin + size == segment.num_elements) {
      is_wrong = has_stray_bits(segment, arrays.bodies, bits) || is_wrong;
    }
    // A run has whole blocks and an even number of elements, so it is an array of its own.
    std::byte const* const codes =
        arrays.bodies + segment.codes_begin + (bits == 8 ? begin : begin / 2);
    float* const sums = sums_of(arrays, segment) + begin;
    Opened<DequantizeAdd> const operation = {
        {{}, codes, BlockScales(scales, block_elements), sums, arrays.weight, bits},
        arrays.is_first};
    bool const is_aligned = codes_are_aligned(codes, bits) && all_quad_aligned(sums);
    stream_part<DequantizeManyPolicy>(operation, 0, size, is_aligned, seen);
  }
  raise(words, kStepCorrupt, is_wrong);
}

}  // namespace

Flags encode_values_many(ExecContext const& ctx, SegmentTable const& table,
                         EncodedArrays const& arrays, DType type, Rounding rounding,
                         StepValue<std::uint64_t> step) noexcept {
  Runs const runs(table);
  if (runs.count == 0) return 0;
  bool const is_stochastic = rounding == Rounding::stochastic;
  with_dtype(arrays.gradient.dtype, [&]<typename G>(G const*) {
    with_dtype(type, [&]<typename V>(V const*) {
      launch(ctx, grid_of(runs.count), EncodeValuesManyPolicy::threads, 0,
             encode_values_many_kernel<G, V>, runs, arrays, is_stochastic, step, ctx.words);
    });
  });
  return 0;
}

void add_values_many(ExecContext const& ctx, SegmentTable const& table, DecodedArrays const& arrays,
                     DType type) noexcept {
  Runs const runs(table);
  if (runs.count == 0) return;
  with_dtype(type, [&]<typename V>(V const*) {
    launch(ctx, grid_of(runs.count), AddValuesManyPolicy::threads, 0, add_values_many_kernel<V>,
           runs, arrays, ctx.only_if);
  });
}

Flags quantize_many(ExecContext const& ctx, SegmentTable const& table, EncodedArrays const& arrays,
                    int bits, std::uint64_t block_elements, Rounding rounding,
                    StepValue<std::uint64_t> step) noexcept {
  Runs const runs(table);
  if (runs.count == 0) return 0;
  ManyCoding const many = {.run_elements = run_elements(block_elements),
                           .block_elements = static_cast<unsigned>(block_elements),
                           .bits = bits,
                           .is_stochastic = rounding == Rounding::stochastic,
                           .step = step,
                           .words = ctx.words};
  auto const start = [&](auto* kernel) {
    launch(ctx, grid_of(runs.count), QuantizeManyPolicy::threads, run_shared_bytes(block_elements),
           kernel, runs, arrays, many);
  };
  if (arrays.is_corrected) {
    start(quantize_many_kernel<float, CorrectedSource>);
    return 0;
  }
  with_dtype(arrays.gradient.dtype,
             [&]<typename G>(G const*) { start(quantize_many_kernel<G, FusedSource<G>>); });
  return 0;
}

bool dequantize_add_many(ExecContext const& ctx, SegmentTable const& table,
                         DecodedArrays const& arrays, int bits,
                         std::uint64_t block_elements) noexcept {
  Runs const runs(table);
  if (runs.count == 0) return true;
  launch(ctx, grid_of(runs.count), DequantizeManyPolicy::threads, 0, dequantize_add_many_kernel,
         runs, arrays, run_elements(block_elements), bits, block_elements, ctx.only_if, ctx.words);
  return true;
}

}  // namespace gradsieve::kernels::cuda
