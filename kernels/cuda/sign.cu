// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/many_runs.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/sign_run.cuh"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

// What is made of g and e needs more registers than what is there.
template <typename Source>
struct SignPolicy {
  static constexpr unsigned threads = TilePolicy::threads, min_blocks = 3;
};
template <>
struct SignPolicy<CorrectedSource> : TilePolicy {};

template <bool kAligned, typename Source>
__global__ void __launch_bounds__(SignPolicy<Source>::threads, SignPolicy<Source>::min_blocks)
    sign_kernel(Signing const signing, Source source, std::uint64_t num_runs,
                unsigned num_stretch_floats, std::uint32_t* any_zero, StepWords* words) {
  extern __shared__ float4 shared[];
  auto* const stretch = reinterpret_cast<float*>(shared);
  source.begin();
  bool found_zero = false;
  bool non_finite = false;
  for (std::uint64_t run = blockIdx.x; run < num_runs; run += gridDim.x) {
    sign_run<kAligned>(signing, source, run, stretch, num_stretch_floats, found_zero, non_finite);
  }
  if (__syncthreads_or(found_zero ? 1 : 0) != 0 && threadIdx.x == 0) atomicOr(any_zero, 1U);
  raise(words, kStepNonFinite, non_finite);
}

struct SignAdd : OnlyIf {
  std::byte const* signs;
  std::byte const* zeros;  ///< null: none are
  BlockScales scales;
  float* accumulator;
  float weight;

  struct Bits {
    unsigned negative;
    unsigned zero;
  };
  /// Sixteen bits of each plane, so that a warp reads its chunk at once.
  [[nodiscard]] __device__ Bits load_chunk(std::uint64_t chunk) const {
    std::uint64_t const word = chunk * (kChunkElements / 16) + threadIdx.x % 32;
    return {reinterpret_cast<std::uint16_t const*>(signs)[word],
            zeros == nullptr ? 0U : reinterpret_cast<std::uint16_t const*>(zeros)[word]};
  }
  /// The four bits of this lane's quad: another lane has read them.
  [[nodiscard]] __device__ Bits row_of(Bits const& loaded, unsigned row) const {
    unsigned const lane = threadIdx.x % 32;
    auto const from = static_cast<int>(8 * row + lane / 4);
    unsigned const shift = lane % 4 * 4;
    return {__shfl_sync(0xffffffffU, loaded.negative, from) >> shift,
            __shfl_sync(0xffffffffU, loaded.zero, from) >> shift};
  }
  [[nodiscard]] __device__ float decoded(Bits const& bits, unsigned lane, float scale) const {
    if ((bits.zero >> lane & 1U) != 0) return 0.0F;
    return (bits.negative >> lane & 1U) != 0 ? -scale : scale;
  }
  [[nodiscard]] static __device__ unsigned bit(std::byte const* plane, std::uint64_t i) {
    return static_cast<unsigned>(plane[i / 8]) >> (i % 8) & 1U;
  }

  struct Loaded {
    float before;
    float scale;
    Bits bits;
  };
  template <int kWidth>
  __device__ Loaded load(std::uint64_t i) const {
    return {accumulator[i],
            scales.at<1>(i).at[0],
            {bit(signs, i), zeros == nullptr ? 0 : bit(zeros, i)}};
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t i, Loaded const& x, bool&) const {
    float const product = weight * decoded(x.bits, 0, x.scale);
    accumulator[i] = canonical(x.before + product);
  }
};

// --- many tensors --------------------------------------------------------------------------------

// With a segment of its own, a run needs more registers than one of a single tensor.
struct SignManyPolicy {
  static constexpr unsigned threads = TilePolicy::threads, min_blocks = 2;
};
struct SignAddManyPolicy {
  static constexpr unsigned threads = TilePolicy::threads, items_per_thread = 2, min_blocks = 4;
};

/// Where a body's planes begin; both are as long.
__device__ std::uint64_t plane_bytes_of(Segment const& segment) {
  return (segment.num_elements + 7) / 8;
}

template <typename G, typename Source>
__global__ void __launch_bounds__(SignManyPolicy::threads, SignManyPolicy::min_blocks)
    sign_many_kernel(Runs const runs, EncodedArrays const arrays, Signing const shape,
                     unsigned num_stretch_floats, StepWords* words) {
  extern __shared__ float4 shared[];
  auto* const stretch = reinterpret_cast<float*>(shared);
  __shared__ Segment segment;
  __shared__ EncodedSegment<G> at;
  StepValue<float> const carry = arrays.carry.get();
  bool unused = false;
  bool non_finite = false;
  for (std::uint64_t run = blockIdx.x; run < runs.count; run += gridDim.x) {
    runs.fetch(run, segment);
    at.place(arrays, segment);
    Signing signing = shape;
    signing.num_elements = segment.num_elements;
    signing.signs = at.codes + kSignHeader.size();
    signing.zeros = signing.signs + plane_bytes_of(segment);
    signing.scales = at.scales;
    signing.residual = at.residual_out;
    Source const source = source_of<Source>(at.gradient, at.residual_in, carry);
    std::uint64_t const own_run = run - segment.first_run;
    if (own_run == 0 && threadIdx.x < kSignHeader.size()) {
      at.codes[threadIdx.x] = std::byte{threadIdx.x == 0};
    }
    if (all_quad_aligned(at.gradient, at.residual_in, at.residual_out)) {
      sign_run<true>(signing, source, own_run, stretch, num_stretch_floats, unused, non_finite);
    } else {
      sign_run<false>(signing, source, own_run, stretch, num_stretch_floats, unused, non_finite);
    }
  }
  raise(words, kStepNonFinite, non_finite);
}

__device__ bool all_word_aligned(std::byte const* a, std::byte const* b) {
  return (reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b)) % 4 == 0;
}

/// The bits of an element, or of four that stand together in one half of a byte.
struct SignAddMany {
  std::byte const* signs;
  std::byte const* zeros;
  BlockScales scales;
  float* accumulator;
  float weight;
  bool is_first;

  template <int kWidth>
  struct Loaded {
    Pack<float, kWidth> sum;
    Pack<float, kWidth> scale;
    unsigned negative;
    unsigned zero;
  };
  template <int kWidth>
  __device__ Loaded<kWidth> load(std::uint64_t i) const {
    constexpr unsigned kMask = (1U << kWidth) - 1;
    Loaded<kWidth> result = {{},
                             scales.at<kWidth>(i),
                             static_cast<unsigned>(signs[i / 8]) >> (i % 8) & kMask,
                             static_cast<unsigned>(zeros[i / 8]) >> (i % 8) & kMask};
    if (!is_first) result.sum = cuda::load<kWidth>(accumulator + i);
    return result;
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t i, Loaded<kWidth> const& x, bool& is_wrong) const {
    Pack<float, kWidth> sum;
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      float const scale = (x.negative >> lane & 1U) != 0 ? -x.scale.at[lane] : x.scale.at[lane];
      float const product = weight * ((x.zero >> lane & 1U) != 0 ? 0.0F : scale);
      sum.at[lane] = canonical(x.sum.at[lane] + product);
    }
    is_wrong = is_wrong || (x.negative & x.zero) != 0;
    store<kWidth>(accumulator + i, sum);
  }
};

/// The bits of a run, read once in words: each word is asked for by eight threads.
struct HeldPlanes {
  static constexpr unsigned kWords = kTileElements / 32;
  std::uint32_t signs[kWords];
  std::uint32_t zeros[kWords];

  /// Followed by a barrier. Behind a plane there is more of the body: the last word may reach
  /// there.
  __device__ void read(std::byte const* signs_from, std::byte const* zeros_from, unsigned size) {
    unsigned const i = threadIdx.x;
    if (i >= (size + 31) / 32) return;
    signs[i] = reinterpret_cast<std::uint32_t const*>(signs_from)[i];
    zeros[i] = reinterpret_cast<std::uint32_t const*>(zeros_from)[i];
  }
};

/// Whether what stands around the planes is not as it must be. One thread looks.
__device__ bool has_wrong_edges(Segment const& segment, std::byte const* bodies) {
  std::byte const* const body = bodies + segment.codes_begin;
  bool found = false;
  for (unsigned i = 0; i < kSignHeader.size(); ++i) found = found || body[i] != std::byte{i == 0};
  std::uint64_t const plane = plane_bytes_of(segment);
  std::uint64_t const end = segment.codes_begin + kSignHeader.size() + 2 * plane;
  auto const used = static_cast<unsigned>(segment.num_elements % 8);
  if (used != 0) {
    found = found || static_cast<unsigned>(bodies[end - 1]) >> used != 0 ||
            static_cast<unsigned>(bodies[end - plane - 1]) >> used != 0;
  }
  for (std::uint64_t i = end; i < segment.scales_begin; ++i) {
    found = found || bodies[i] != std::byte{0};
  }
  return found;
}

__global__ void __launch_bounds__(SignAddManyPolicy::threads, SignAddManyPolicy::min_blocks)
    sign_add_many_kernel(Runs const runs, DecodedArrays const arrays, std::uint64_t run_elements,
                         std::uint64_t block_elements, std::uint32_t const* only_if,
                         StepWords* words) {
  __shared__ Segment segment;
  __shared__ HeldScales held;
  __shared__ HeldPlanes planes;
  static_assert(HeldPlanes::kWords <= SignAddManyPolicy::threads);
  if (only_if != nullptr && *only_if == 0) return;
  bool is_wrong = false;
  for (std::uint64_t run = blockIdx.x; run < runs.count; run += gridDim.x) {
    runs.fetch(run, segment);
    std::uint64_t const begin = (run - segment.first_run) * run_elements;
    std::uint64_t const size = min(run_elements, segment.num_elements - begin);
    std::uint64_t const num_scales = (size + block_elements - 1) / block_elements;
    std::byte const* scales =
        arrays.bodies + segment.scales_begin + begin / block_elements * sizeof(float);
    // A run begins with a byte of both planes.
    std::byte const* signs = arrays.bodies + segment.codes_begin + kSignHeader.size() + begin / 8;
    std::byte const* zeros = signs + plane_bytes_of(segment);
    bool const is_held = size <= kTileElements && all_word_aligned(signs, zeros);
    if (is_held) planes.read(signs, zeros, static_cast<unsigned>(size));
    is_wrong = hold_scales<SignAddManyPolicy>(scales, num_scales, held) || is_wrong;
    if (num_scales <= HeldScales::kMost) scales = reinterpret_cast<std::byte const*>(held.words);
    if (is_held) {
      signs = reinterpret_cast<std::byte const*>(planes.signs);
      zeros = reinterpret_cast<std::byte const*>(planes.zeros);
    }
    if (threadIdx.x == 0 && begin == 0) {
      is_wrong = has_wrong_edges(segment, arrays.bodies) || is_wrong;
    }
    float* const sums = sums_of(arrays, segment) + begin;
    SignAddMany const operation = {signs, zeros,         BlockScales(scales, block_elements),
                                   sums,  arrays.weight, arrays.is_first};
    stream_part<SignAddManyPolicy>(operation, 0, size, all_quad_aligned(sums), is_wrong);
  }
  raise(words, kStepCorrupt, is_wrong);
}

// --- one tensor ----------------------------------------------------------------------------------

struct Planes {
  std::uint64_t block_elements;
  std::span<std::byte> signs;
  std::span<std::byte> zeros;
  std::span<float> scales;
  std::span<float> residual;
  std::uint32_t* any_zero;
};

template <typename Source>
void launch_sign(ExecContext const& ctx, std::uint64_t num_elements, Planes const& planes,
                 Source const& source, StepWords* words, bool is_source_aligned) noexcept {
  if (num_elements == 0) return;
  SignShape const shape(num_elements, planes.block_elements);
  Signing const signing = {.num_elements = num_elements,
                           .run_elements = shape.units.run_elements,
                           .block_elements = static_cast<unsigned>(planes.block_elements),
                           .padding = shape.padding,
                           .signs = planes.signs.data(),
                           .zeros = planes.zeros.data(),
                           .scales = planes.scales.data(),
                           .residual = planes.residual.empty() ? nullptr : planes.residual.data()};
  bool const is_aligned = is_source_aligned && is_quad_aligned(signing.residual) &&
                          (shape.units.fits_tile || planes.block_elements % 4 == 0);
  launch(ctx, grid_of(shape.units.num_runs), TilePolicy::threads, shape.shared_bytes(),
         is_aligned ? sign_kernel<true, Source> : sign_kernel<false, Source>, signing, source,
         shape.units.num_runs, shape.num_stretch_floats, planes.any_zero, words);
}

}  // namespace

void sign(ExecContext const& ctx, std::span<float const> corrected, std::uint64_t block_elements,
          std::span<std::byte> signs, std::span<std::byte> zeros, std::span<float> scales,
          std::span<float> residual, std::uint32_t* any_zero) noexcept {
  Planes const planes = {block_elements, signs, zeros, scales, residual, any_zero};
  launch_sign(ctx, corrected.size(), planes, CorrectedSource{corrected.data()}, nullptr,
              is_quad_aligned(corrected.data()));
}

// As with quantize_fused a run that is read twice may have its residual in place of e.
Flags sign_fused(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                 std::uint64_t block_elements, std::span<std::byte> signs,
                 std::span<std::byte> zeros, std::span<float> scales,
                 std::uint32_t* any_zero) noexcept {
  Planes const planes = {block_elements, signs, zeros, scales, residual.out, any_zero};
  float const* const in = residual.in.empty() ? nullptr : residual.in.data();
  with_elements(gradient, [&]<typename T>(T const* elements) {
    launch_sign(ctx, gradient.num_elements, planes, FusedSource<T>{elements, in, residual.carry},
                ctx.words, is_quad_aligned(elements) && is_quad_aligned(in));
  });
  return 0;
}

void sign_add(ExecContext const& ctx, std::byte const* signs, std::byte const* zeros,
              std::byte const* scales, std::uint64_t block_elements, float weight,
              std::span<float> accumulator) noexcept {
  SignAdd const operation = {{ctx.only_if},      signs, zeros, BlockScales(scales, block_elements),
                             accumulator.data(), weight};
  auto const is_even = [](std::byte const* plane) {
    return reinterpret_cast<std::uintptr_t>(plane) % sizeof(std::uint16_t) == 0;
  };
  add_rows(ctx, operation, accumulator.size(),
           is_quad_aligned(accumulator.data()) && is_even(signs) && is_even(zeros));
}

Flags sign_many(ExecContext const& ctx, SegmentTable const& table, EncodedArrays const& arrays,
                std::uint64_t block_elements) noexcept {
  Runs const runs(table);
  if (runs.count == 0) return 0;
  SignShape const shape(kTileElements, block_elements);
  Signing const signing = {.num_elements = 0,
                           .run_elements = shape.units.run_elements,
                           .block_elements = static_cast<unsigned>(block_elements),
                           .padding = shape.padding,
                           .signs = nullptr,
                           .zeros = nullptr,
                           .scales = nullptr,
                           .residual = nullptr};
  auto const start = [&](auto* kernel) {
    launch(ctx, grid_of(runs.count), SignManyPolicy::threads, shape.shared_bytes(), kernel, runs,
           arrays, signing, shape.num_stretch_floats, ctx.words);
  };
  if (arrays.is_corrected) {
    start(sign_many_kernel<float, CorrectedSource>);
    return 0;
  }
  with_dtype(arrays.gradient.dtype,
             [&]<typename G>(G const*) { start(sign_many_kernel<G, FusedSource<G>>); });
  return 0;
}

bool sign_add_many(ExecContext const& ctx, SegmentTable const& table, DecodedArrays const& arrays,
                   std::uint64_t block_elements) noexcept {
  Runs const runs(table);
  if (runs.count == 0) return true;
  launch(ctx, grid_of(runs.count), SignAddManyPolicy::threads, 0, sign_add_many_kernel, runs,
         arrays, run_elements(block_elements), block_elements, ctx.only_if, ctx.words);
  return true;
}

}  // namespace gradsieve::kernels::cuda
