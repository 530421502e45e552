// SPDX-License-Identifier: Apache-2.0
// Sign planes. The scale of a block is a sum in a fixed order: eight lanes of a block's stretch of
// 4096 add left to right, from shared memory, while other thread blocks keep the memory busy. As in
// quantize_run.cuh a run of whole blocks is held in registers, and read again only where it is too
// long.
#pragma once

#include <numeric>

#include "kernels/cuda/run_source.cuh"

namespace gradsieve::kernels::cuda {

inline constexpr unsigned kSumBlock = 4096;
inline constexpr unsigned kLanes = 8;
static_assert(kTileElements == kSumBlock);

struct Signing {
  std::uint64_t num_elements;
  std::uint64_t run_elements;  ///< a multiple of eight: no two runs share a byte of a plane
  unsigned block_elements;
  unsigned padding;  ///< floats behind each block in shared memory, so that lanes hit all banks
  std::byte* signs;
  std::byte* zeros;
  float* scales;
  float* residual;  ///< null: not wanted

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
__device__ inline Sum sum_stretch(float const* stretch, unsigned size, unsigned members) {
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
__device__ inline unsigned members_of_turn(unsigned num_groups) {
  unsigned const first_group = threadIdx.x / 32 * (32 / kLanes);
  unsigned const present = num_groups <= first_group ? 0 : min(num_groups - first_group, 4U);
  return present == 4 ? 0xffffffffU : (1U << (present * kLanes)) - 1;
}

/// All loads are issued before the first sum.
template <bool kAligned, typename Source>
__device__ void read_tile(Source const& source, std::uint64_t begin, unsigned size,
                          Quad (&c)[kItems], bool& non_finite) {
  typename Source::Loaded loaded[kItems];
#pragma unroll
  for (unsigned item = 0; item < kItems; ++item) {
    QuadPlace const at(item, size);
    loaded[item] = source.template load<kAligned>(begin + at.first, at.count);
  }
#pragma unroll
  for (unsigned item = 0; item < kItems; ++item) {
    QuadPlace const at(item, size);
    c[item] = source.corrected(loaded[item], at.count, non_finite);
  }
}

/// load<4>() and store<4>() are for global memory.
__device__ inline void store_shared(float* to, Quad const& quad, unsigned count) {
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
__device__ inline void sum_tile(Signing const& signing, unsigned size, Quad const (&c)[kItems],
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
template <bool kAligned, typename Source>
__device__ void sum_long_blocks(Signing const& signing, Source const& source, std::uint64_t begin,
                                std::uint64_t size, Quad (&c)[kItems], float* stretch,
                                float* scales, bool& non_finite) {
  for (std::uint64_t first = 0; first < size; first += signing.block_elements) {
    std::uint64_t const block_size = min(std::uint64_t{signing.block_elements}, size - first);
    Sum total;
    for (std::uint64_t part = 0; part < block_size; part += kSumBlock) {
      auto const part_size =
          static_cast<unsigned>(min(std::uint64_t{kSumBlock}, block_size - part));
      read_tile<kAligned>(source, begin + first + part, part_size, c, non_finite);
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
__device__ inline void write_bits(std::byte* plane, std::uint64_t i, unsigned count,
                                  unsigned bits) {
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

/// One run; all threads of the block call it. What is shared of an earlier run is done with.
template <bool kAligned, typename Source>
__device__ void sign_run(Signing const& signing, Source const& source, std::uint64_t run,
                         float* stretch, unsigned num_stretch_floats, bool& any_zero,
                         bool& non_finite) {
  float* const scales = stretch + num_stretch_floats;
  std::uint64_t const begin = run * signing.run_elements;
  std::uint64_t const size = min(signing.run_elements, signing.num_elements - begin);
  bool const is_held = signing.run_elements <= kTileElements;
  Quad c[kItems];
  if (is_held) {
    read_tile<kAligned>(source, begin, static_cast<unsigned>(size), c, non_finite);
    sum_tile(signing, static_cast<unsigned>(size), c, stretch, scales);
  } else {
    sum_long_blocks<kAligned>(signing, source, begin, size, c, stretch, scales, non_finite);
  }
  __syncthreads();
  auto const num_blocks =
      static_cast<unsigned>((size + signing.block_elements - 1) / signing.block_elements);
  for (unsigned block = threadIdx.x; block < num_blocks; block += TilePolicy::threads) {
    signing.scales[begin / signing.block_elements + block] = scales[block];
  }
  for (std::uint64_t tile = 0; tile < size; tile += kTileElements) {
    auto const tile_size = static_cast<unsigned>(min(size - tile, std::uint64_t{kTileElements}));
    if (!is_held) read_tile<kAligned>(source, begin + tile, tile_size, c, non_finite);
    write_tile<kAligned>(signing, begin + tile, static_cast<unsigned>(tile), tile_size, c, scales,
                         any_zero);
  }
  __syncthreads();  // the scales are read; the next run has its own
}

/// What runs of blocks of this size take of shared memory.
struct SignShape {
  Units units;
  unsigned num_blocks;
  unsigned padding;
  unsigned num_stretch_floats;

  SignShape(std::uint64_t num_elements, std::uint64_t block_elements) noexcept
      : units(num_elements, std::lcm(block_elements, std::uint64_t{8})),
        num_blocks(static_cast<unsigned>(divide_up(units.run_elements, block_elements))),
        padding(units.fits_tile && block_elements % 32 == 0 ? kLanes : 0),
        num_stretch_floats(kTileElements + num_blocks * padding) {}
  [[nodiscard]] std::size_t shared_bytes() const noexcept {
    return (num_stretch_floats + num_blocks) * sizeof(float);
  }
};

}  // namespace gradsieve::kernels::cuda
