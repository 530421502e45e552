// SPDX-License-Identifier: Apache-2.0
// Sign planes. The scale of a block is a sum in a fixed order: eight lanes of a block's stretch of
// 4096 add left to right, from shared memory, while other thread blocks keep the memory busy. As in
// quantize.cu a run of whole blocks is held in registers, and read again only where it is too long.
#include <numeric>

#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/tile.cuh"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

constexpr unsigned kItems = TilePolicy::items_per_thread;
constexpr unsigned kSumBlock = 4096;
constexpr unsigned kLanes = 8;
static_assert(kTileElements == kSumBlock);
using Quad = Pack<float, 4>;

struct Signing {
  float const* corrected;
  std::uint64_t num_elements;
  std::uint64_t run_elements;  ///< a multiple of eight: no two runs share a byte of a plane
  unsigned block_elements;
  unsigned padding;  ///< floats behind each block in shared memory, so that lanes hit all banks
  std::byte* signs;
  std::byte* zeros;
  float* scales;
  float* residual;  ///< null: not wanted
  std::uint32_t* any_zero;

  [[nodiscard]] __device__ unsigned padded(unsigned place) const {
    return padding == 0 ? place : place + place / block_elements * padding;
  }
};

struct Sum {
  double magnitudes = 0;
  std::uint64_t num_nonzero = 0;

  [[nodiscard]] __device__ float scale() const {
    return num_nonzero == 0 ? 0.0F
                            : static_cast<float>(magnitudes / static_cast<double>(num_nonzero));
  }
};

/// Eight neighbouring threads: the sum of one stretch of a block, lane by lane, lanes in pairs.
__device__ Sum sum_stretch(float const* stretch, unsigned size, unsigned members) {
  double sum = 0;
  unsigned count = 0;
#pragma unroll 4
  for (unsigned i = threadIdx.x % kLanes; i < size; i += kLanes) {
    sum += static_cast<double>(fabsf(stretch[i]));
    count += stretch[i] != 0.0F ? 1U : 0U;
  }
  for (int distance = 1; distance < static_cast<int>(kLanes); distance *= 2) {
    sum += __shfl_xor_sync(members, sum, distance);
    count += __shfl_xor_sync(members, count, distance);
  }
  return {sum, count};
}

/// The lanes of this thread's warp that take part in a turn of groups of eight.
__device__ unsigned members_of_turn(unsigned num_groups) {
  unsigned const first_group = threadIdx.x / 32 * (32 / kLanes);
  unsigned const present = num_groups <= first_group ? 0 : min(num_groups - first_group, 4U);
  return present == 4 ? 0xffffffffU : (1U << (present * kLanes)) - 1;
}

template <bool kAligned>
__device__ void read_tile(Signing const& signing, std::uint64_t begin, unsigned size,
                          Quad (&c)[kItems]) {
#pragma unroll
  for (unsigned item = 0; item < kItems; ++item) {
    QuadPlace const at(item, size);
    c[item] = load_quad<kAligned>(signing.corrected + begin + at.first, at.count);
  }
}

/// load<4>() and store<4>() are for global memory.
__device__ void store_shared(float* to, Quad const& quad, unsigned count) {
  if (count == 4) {
    *reinterpret_cast<float4*>(to) = make_float4(quad.at[0], quad.at[1], quad.at[2], quad.at[3]);
    return;
  }
#pragma unroll
  for (unsigned lane = 0; lane < 4; ++lane) {
    if (lane < count) to[lane] = quad.at[lane];
  }
}

/// Blocks that a tile holds whole: all their scales at once.
__device__ void sum_tile(Signing const& signing, unsigned size, Quad const (&c)[kItems],
                         float* stretch, float* scales) {
#pragma unroll
  for (unsigned item = 0; item < kItems; ++item) {
    QuadPlace const at(item, size);
    // Without padding the floats stand as in the tile.
    store_shared(stretch + signing.padded(at.first), c[item], at.count);
  }
  __syncthreads();
  unsigned const num_blocks = (size + signing.block_elements - 1) / signing.block_elements;
  constexpr unsigned kGroups = TilePolicy::threads / kLanes;
  for (unsigned turn = 0; turn < num_blocks; turn += kGroups) {
    unsigned const block = turn + threadIdx.x / kLanes;
    if (block >= num_blocks) break;
    unsigned const first = block * signing.block_elements;
    Sum const sum =
        sum_stretch(stretch + signing.padded(first), min(signing.block_elements, size - first),
                    members_of_turn(num_blocks - turn));
    if (threadIdx.x % kLanes == 0) scales[block] = sum.scale();
  }
}

/// Blocks longer than a tile, one after the other, stretch by stretch.
template <bool kAligned>
__device__ void sum_long_blocks(Signing const& signing, std::uint64_t begin, std::uint64_t size,
                                Quad (&c)[kItems], float* stretch, float* scales) {
  for (std::uint64_t first = 0; first < size; first += signing.block_elements) {
    std::uint64_t const block_size = min(std::uint64_t{signing.block_elements}, size - first);
    Sum total;
    for (std::uint64_t part = 0; part < block_size; part += kSumBlock) {
      auto const part_size =
          static_cast<unsigned>(min(std::uint64_t{kSumBlock}, block_size - part));
      read_tile<kAligned>(signing, begin + first + part, part_size, c);
      __syncthreads();  // the stretch before is summed
#pragma unroll
      for (unsigned item = 0; item < kItems; ++item) {
        QuadPlace const at(item, part_size);
        store_shared(stretch + at.first, c[item], at.count);
      }
      __syncthreads();
      if (threadIdx.x < kLanes) {
        Sum const sum = sum_stretch(stretch, part_size, (1U << kLanes) - 1);
        total.magnitudes += sum.magnitudes;
        total.num_nonzero += sum.num_nonzero;
      }
    }
    if (threadIdx.x == 0) scales[first / signing.block_elements] = total.scale();
  }
}

/// Two neighbours have the eight bits of a byte, four each.
__device__ void write_bits(std::byte* plane, std::uint64_t i, unsigned count, unsigned bits) {
  unsigned const behind = __shfl_down_sync(0xffffffffU, bits, 1);
  if (threadIdx.x % 2 == 0 && count > 0) plane[i / 8] = static_cast<std::byte>(bits | behind << 4);
}

template <bool kAligned>
__device__ void write_tile(Signing const& signing, std::uint64_t tile_begin, unsigned place_of_tile,
                           unsigned size, Quad const (&c)[kItems], float const* scales,
                           bool& any_zero) {
#pragma unroll
  for (unsigned item = 0; item < kItems; ++item) {
    QuadPlace const at(item, size);
    std::uint64_t const i = tile_begin + at.first;
    unsigned const place = place_of_tile + at.first;
    unsigned negative = 0;
    unsigned zero = 0;
    Quad rest = {};
#pragma unroll
    for (unsigned lane = 0; lane < 4; ++lane) {
      if (lane >= at.count) continue;
      float const x = c[item].at[lane];
      float const scale = scales[(place + lane) / signing.block_elements];
      if (x < 0.0F) negative |= 1U << lane;
      if (x == 0.0F) zero |= 1U << lane;
      float const decoded = x > 0.0F ? scale : x < 0.0F ? -scale : 0.0F;
      rest.at[lane] = x - decoded;
    }
    any_zero = any_zero || zero != 0;
    write_bits(signing.signs, i, at.count, negative);
    write_bits(signing.zeros, i, at.count, zero);
    if (signing.residual != nullptr) store_quad<kAligned>(signing.residual + i, rest, at.count);
  }
}

template <bool kAligned>
__global__ void __launch_bounds__(TilePolicy::threads, TilePolicy::min_blocks)
    sign_kernel(Signing const signing, std::uint64_t num_runs, unsigned num_stretch_floats) {
  extern __shared__ float4 shared[];
  auto* const stretch = reinterpret_cast<float*>(shared);
  float* const scales = stretch + num_stretch_floats;
  bool any_zero = false;
  for (std::uint64_t run = blockIdx.x; run < num_runs; run += gridDim.x) {
    std::uint64_t const begin = run * signing.run_elements;
    std::uint64_t const size = min(signing.run_elements, signing.num_elements - begin);
    bool const is_held = signing.run_elements <= kTileElements;
    Quad c[kItems];
    if (is_held) {
      read_tile<kAligned>(signing, begin, static_cast<unsigned>(size), c);
      sum_tile(signing, static_cast<unsigned>(size), c, stretch, scales);
    } else {
      sum_long_blocks<kAligned>(signing, begin, size, c, stretch, scales);
    }
    __syncthreads();
    auto const num_blocks =
        static_cast<unsigned>((size + signing.block_elements - 1) / signing.block_elements);
    for (unsigned block = threadIdx.x; block < num_blocks; block += TilePolicy::threads) {
      signing.scales[begin / signing.block_elements + block] = scales[block];
    }
    for (std::uint64_t tile = 0; tile < size; tile += kTileElements) {
      auto const tile_size = static_cast<unsigned>(min(size - tile, std::uint64_t{kTileElements}));
      if (!is_held) read_tile<kAligned>(signing, begin + tile, tile_size, c);
      write_tile<kAligned>(signing, begin + tile, static_cast<unsigned>(tile), tile_size, c, scales,
                           any_zero);
    }
    __syncthreads();  // the scales are read; the next run has its own
  }
  if (__syncthreads_or(any_zero ? 1 : 0) != 0 && threadIdx.x == 0) atomicOr(signing.any_zero, 1U);
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

}  // namespace

void sign(ExecContext const& ctx, std::span<float const> corrected, std::uint64_t block_elements,
          std::span<std::byte> signs, std::span<std::byte> zeros, std::span<float> scales,
          std::span<float> residual, std::uint32_t* any_zero) noexcept {
  if (corrected.empty()) return;
  Units const units(corrected.size(), std::lcm(block_elements, std::uint64_t{8}));
  bool const is_padded = units.fits_tile && block_elements % 32 == 0;
  Signing const signing = {.corrected = corrected.data(),
                           .num_elements = corrected.size(),
                           .run_elements = units.run_elements,
                           .block_elements = static_cast<unsigned>(block_elements),
                           .padding = is_padded ? kLanes : 0,
                           .signs = signs.data(),
                           .zeros = zeros.data(),
                           .scales = scales.data(),
                           .residual = residual.empty() ? nullptr : residual.data(),
                           .any_zero = any_zero};
  auto const num_blocks = static_cast<unsigned>(divide_up(units.run_elements, block_elements));
  unsigned const num_stretch_floats = kTileElements + num_blocks * signing.padding;
  bool const is_aligned = is_quad_aligned(corrected.data()) && is_quad_aligned(signing.residual) &&
                          (units.fits_tile || block_elements % 4 == 0);
  launch(ctx, grid_of(units.num_runs), TilePolicy::threads,
         (num_stretch_floats + num_blocks) * sizeof(float),
         is_aligned ? sign_kernel<true> : sign_kernel<false>, signing, units.num_runs,
         num_stretch_floats);
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

}  // namespace gradsieve::kernels::cuda
