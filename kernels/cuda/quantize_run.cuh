// SPDX-License-Identifier: Apache-2.0
// Block quantizers. A thread block takes a run of whole blocks of the quantizer, holds c in
// registers between the maximum and the codes, and so reads and writes everything once. Only a
// quantizer's block that is longer than a tile is read twice.
#pragma once

#include "kernels/cuda/block_maxima.cuh"
#include "kernels/cuda/random.cuh"
#include "kernels/cuda/run_source.cuh"
#include "kernels/many_ops.hpp"

namespace gradsieve::kernels::cuda {

struct Coding {
  std::uint64_t num_elements;
  std::uint64_t run_elements;
  unsigned block_elements;
  int bits;
  bool is_stochastic;
  RoundingKey key;
  std::byte* codes;
  float* scales;
  float* residual;  ///< null: not wanted
  StepWords* words;

  [[nodiscard]] __device__ float levels() const { return bits == 8 ? 127.0F : 7.0F; }
};

__device__ inline float block_scale(float largest, float levels) {
  float const scale = largest / levels;
  float const top = scale * levels;
  if (top < largest) return __uint_as_float(__float_as_uint(scale) + 1);
  return is_finite(top) ? scale : __uint_as_float(__float_as_uint(scale) - 1);
}

/// Codes of a quad and what they leave.
__device__ inline void write_quad(Coding const& coding, bool is_aligned, std::uint64_t i,
                                  unsigned count, Quad const& c, float const (&scales)[4],
                                  RandomQuad random) {
  float const levels = coding.levels();
  Quad rest;
  int q[4];
#pragma unroll
  for (unsigned lane = 0; lane < 4; ++lane) {
    float const scale = scales[lane];
    float const level = scale == 0.0F ? 0.0F : c.at[lane] / scale;
    float const rounded = coding.is_stochastic
                              ? floorf(level + random_uniform(random, static_cast<int>(lane)))
                              : rintf(level);
    q[lane] = static_cast<int>(fmaxf(-levels, fminf(levels, rounded)));
    rest.at[lane] = c.at[lane] - static_cast<float>(q[lane]) * scale;
    if (lane >= count) q[lane] = 0;
  }
  if (coding.bits == 8) {
    Pack<std::byte, 4> codes;
#pragma unroll
    for (unsigned lane = 0; lane < 4; ++lane) codes.at[lane] = static_cast<std::byte>(q[lane]);
    if (is_aligned) {
      store_quad<true>(coding.codes + i, codes, count);
    } else {
      store_quad<false>(coding.codes + i, codes, count);
    }
  } else {
    auto const low = static_cast<std::uint16_t>((q[0] & 0xf) | (q[1] & 0xf) << 4);
    auto const high = static_cast<std::uint16_t>((q[2] & 0xf) | (q[3] & 0xf) << 4);
    if (is_aligned && count == 4) {
      *reinterpret_cast<std::uint16_t*>(coding.codes + i / 2) =
          static_cast<std::uint16_t>(low | high << 8);
    } else {
      if (count > 0) coding.codes[i / 2] = static_cast<std::byte>(low);
      if (count > 2) coding.codes[i / 2 + 1] = static_cast<std::byte>(high);
    }
  }
  if (coding.residual == nullptr) return;
  if (is_aligned) {
    store_quad<true>(coding.residual + i, rest, count);
  } else {
    store_quad<false>(coding.residual + i, rest, count);
  }
}

template <bool kAligned>
__device__ void write_tile(Coding const& coding, BlockWords const& blocks, std::uint64_t tile_begin,
                           unsigned place_of_tile, unsigned size, Quad const (&c)[kItems]) {
  RandomQuad random[kItems] = {};
  if (coding.is_stochastic) draw_tile(coding.key, tile_begin, random);
#pragma unroll
  for (unsigned item = 0; item < kItems; ++item) {
    QuadPlace const at(item, size);
    if (at.count == 0) continue;
    unsigned const place = place_of_tile + at.first;
    float scales[4];
    scales[0] = blocks.scale_of(place);
    bool const is_one = place / blocks.block_elements == (place + 3) / blocks.block_elements;
#pragma unroll
    for (unsigned lane = 1; lane < 4; ++lane) {
      scales[lane] = is_one || lane >= at.count ? scales[0] : blocks.scale_of(place + lane);
    }
    write_quad(coding, kAligned, tile_begin + at.first, at.count, c[item], scales, random[item]);
  }
}

__device__ inline void make_scales(Coding const& coding, BlockWords const& blocks,
                                   std::uint64_t run_begin, unsigned num_blocks) {
  __syncthreads();
  for (unsigned block = threadIdx.x; block < num_blocks; block += TilePolicy::threads) {
    float const scale = block_scale(__uint_as_float(blocks.words[block]), coding.levels());
    blocks.words[block] = __float_as_uint(scale);
    coding.scales[run_begin / coding.block_elements + block] = scale;
  }
  __syncthreads();
}

/// One run: its c in registers, tile by tile; where it is longer than a tile, read again for the
/// codes. All threads of the block call it.
template <bool kAligned, typename Source>
__device__ void quantize_run(Coding const& coding, Source const& source, std::uint64_t run,
                             std::uint32_t* block_words, bool& non_finite) {
  BlockWords const blocks = {block_words, coding.block_elements};
  std::uint64_t const begin = run * coding.run_elements;
  std::uint64_t const size = min(coding.run_elements, coding.num_elements - begin);
  auto const num_blocks =
      static_cast<unsigned>((size + coding.block_elements - 1) / coding.block_elements);
  for (unsigned i = threadIdx.x; i < num_blocks; i += TilePolicy::threads) block_words[i] = 0;
  __syncthreads();
  Quad c[kItems];
  auto const read = [&](std::uint64_t tile) {
    auto const tile_size = static_cast<unsigned>(min(size - tile, std::uint64_t{kTileElements}));
    typename Source::Loaded loaded[kItems];
#pragma unroll
    for (unsigned item = 0; item < kItems; ++item) {
      QuadPlace const at(item, tile_size);
      loaded[item] = source.template load<kAligned>(begin + tile + at.first, at.count);
    }
#pragma unroll
    for (unsigned item = 0; item < kItems; ++item) {
      QuadPlace const at(item, tile_size);
      c[item] = source.corrected(loaded[item], at.count, non_finite);
    }
    return tile_size;
  };
  for (std::uint64_t tile = 0; tile < size; tile += kTileElements) {
    unsigned const tile_size = read(tile);
#pragma unroll
    for (unsigned item = 0; item < kItems; ++item) {
      QuadPlace const at(item, tile_size);
      blocks.add(c[item], static_cast<unsigned>(tile) + at.first, at.count);
    }
  }
  make_scales(coding, blocks, begin, num_blocks);
  bool const is_held = size <= kTileElements;
  for (std::uint64_t tile = 0; tile < size; tile += kTileElements) {
    unsigned const tile_size = is_held ? static_cast<unsigned>(size) : read(tile);
    write_tile<kAligned>(coding, blocks, begin + tile, static_cast<unsigned>(tile), tile_size, c);
  }
  __syncthreads();  // the maxima of the next run take the place of the scales
}

static_assert(run_elements(1) == kTileElements);

/// Bytes of shared memory that a run takes.
[[nodiscard]] inline std::size_t run_shared_bytes(std::uint64_t block_elements) noexcept {
  return static_cast<std::size_t>(divide_up(run_elements(block_elements), block_elements)) *
         sizeof(std::uint32_t);
}

}  // namespace gradsieve::kernels::cuda
