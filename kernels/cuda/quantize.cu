// SPDX-License-Identifier: Apache-2.0
// Block quantizers. A thread block takes whole blocks of the quantizer, holds c in registers
// between the maximum and the codes, and so reads and writes everything once. Only a quantizer's
// block that is longer than a tile is read twice.
#include <numeric>

#include "kernels/cuda/block_maxima.cuh"
#include "kernels/cuda/block_scales.cuh"
#include "kernels/cuda/compensated.cuh"
#include "kernels/cuda/random.cuh"
#include "kernels/cuda/stream.cuh"
#include "kernels/cuda/tile.cuh"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

constexpr unsigned kItems = TilePolicy::items_per_thread;
using Quad = Pack<float, 4>;

/// c = g + carry·e.
template <typename T>
struct FusedSource {
  T const* gradient;
  float const* residual_in;  ///< null: zeros
  StepValue<float> carry;

  struct Loaded {
    Pack<T, 4> gradient;
    Quad residual;
  };
  __device__ void begin() { carry = carry.get(); }
  template <bool kAligned>
  __device__ Loaded load(std::uint64_t i, unsigned count) const {
    Loaded result = {load_quad<kAligned>(gradient + i, count), {}};
    if (residual_in != nullptr) result.residual = load_quad<kAligned>(residual_in + i, count);
    return result;
  }
  __device__ Quad corrected(Loaded const& x, unsigned count, bool& non_finite) const {
    Quad c = {};
#pragma unroll
    for (unsigned lane = 0; lane < 4; ++lane) {
      if (lane >= count) continue;
      c.at[lane] =
          compensated(widened(x.gradient.at[lane]), carry.value, x.residual.at[lane], non_finite);
    }
    return c;
  }
};

/// c is there.
struct CorrectedSource {
  float const* values;

  using Loaded = Quad;
  __device__ void begin() {}
  template <bool kAligned>
  __device__ Loaded load(std::uint64_t i, unsigned count) const {
    return load_quad<kAligned>(values + i, count);
  }
  __device__ Quad corrected(Loaded const& x, unsigned, bool&) const { return x; }
};

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

__device__ float block_scale(float largest, float levels) {
  float const scale = largest / levels;
  float const top = scale * levels;
  if (top < largest) return __uint_as_float(__float_as_uint(scale) + 1);
  return is_finite(top) ? scale : __uint_as_float(__float_as_uint(scale) - 1);
}

/// Codes of a quad and what they leave.
__device__ void write_quad(Coding const& coding, bool is_aligned, std::uint64_t i, unsigned count,
                           Quad const& c, float const (&scales)[4], RandomQuad random) {
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

__device__ void make_scales(Coding const& coding, BlockWords const& blocks, std::uint64_t run_begin,
                            unsigned num_blocks) {
  __syncthreads();
  for (unsigned block = threadIdx.x; block < num_blocks; block += TilePolicy::threads) {
    float const scale = block_scale(__uint_as_float(blocks.words[block]), coding.levels());
    blocks.words[block] = __float_as_uint(scale);
    coding.scales[run_begin / coding.block_elements + block] = scale;
  }
  __syncthreads();
}

/// One run: its c in registers, tile by tile; where it is longer than a tile, read again for the
/// codes.
template <bool kAligned, typename Source>
__global__ void __launch_bounds__(TilePolicy::threads, TilePolicy::min_blocks)
    quantize_kernel(Coding coding, Source source, std::uint64_t num_runs) {
  extern __shared__ std::uint32_t block_words[];
  BlockWords const blocks = {block_words, coding.block_elements};
  coding.key.step = coding.key.step.get();
  source.begin();
  bool non_finite = false;
  for (std::uint64_t run = blockIdx.x; run < num_runs; run += gridDim.x) {
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
  raise(coding.words, kStepNonFinite, non_finite);
}

template <typename Source>
void launch_quantize(ExecContext const& ctx, Coding const& coding, Source const& source,
                     bool is_aligned) noexcept {
  if (coding.num_elements == 0) return;
  std::uint64_t const num_runs = divide_up(coding.num_elements, coding.run_elements);
  std::size_t const shared_bytes =
      static_cast<std::size_t>(divide_up(coding.run_elements, coding.block_elements)) *
      sizeof(std::uint32_t);
  auto* const kernel = is_aligned ? quantize_kernel<true, Source> : quantize_kernel<false, Source>;
  launch(ctx, grid_of(num_runs), TilePolicy::threads, shared_bytes, kernel, coding, source,
         num_runs);
}

/// An odd block has a neighbour in its run, so that no byte of two codes belongs to two runs.
Coding coding_of(std::uint64_t num_elements, int bits, std::uint64_t block_elements,
                 Rounding rounding, RoundingKey const& key, std::span<std::byte> codes,
                 std::span<float> scales, std::span<float> residual, StepWords* words) noexcept {
  std::uint64_t const unit = std::lcm(block_elements, std::uint64_t{2});
  return {.num_elements = num_elements,
          .run_elements = Units(num_elements, unit).run_elements,
          .block_elements = static_cast<unsigned>(block_elements),
          .bits = bits,
          .is_stochastic = rounding == Rounding::stochastic,
          .key = key,
          .codes = codes.data(),
          .scales = scales.data(),
          .residual = residual.empty() ? nullptr : residual.data(),
          .words = words};
}

template <typename... T>
bool can_use_quads(Coding const& coding, T const*... arrays) noexcept {
  auto const codes = reinterpret_cast<std::uintptr_t>(coding.codes);
  return coding.run_elements % 4 == 0 && codes % (coding.bits == 8 ? 4 : 2) == 0 &&
         is_quad_aligned(coding.residual) && (is_quad_aligned(arrays) && ...);
}

struct DequantizePolicy {
  static constexpr unsigned threads = 256, items_per_thread = 4, min_blocks = 4;
};

struct DequantizeAdd : SeesNothing {
  std::byte const* codes;
  BlockScales scales;
  float* accumulator;
  float weight;
  int bits;

  template <int kWidth>
  struct Loaded {
    Pack<float, kWidth> sum;
    std::uint32_t codes;  ///< side by side from the lowest bits, of `bits` each
    Pack<float, kWidth> scales;
  };
  template <int kWidth>
  [[nodiscard]] __device__ std::uint32_t load_codes(std::uint64_t i) const {
    if (bits == 8) {
      if constexpr (kWidth == 4) return *reinterpret_cast<std::uint32_t const*>(codes + i);
      return static_cast<std::uint32_t>(codes[i]);
    }
    if constexpr (kWidth == 4) return *reinterpret_cast<std::uint16_t const*>(codes + i / 2);
    return static_cast<std::uint32_t>(codes[i / 2]) >> (i % 2 * 4);
  }
  template <int kWidth>
  __device__ Loaded<kWidth> load(std::uint64_t i) const {
    Loaded<kWidth> result;
    result.sum = cuda::load<kWidth>(accumulator + i);
    result.codes = load_codes<kWidth>(i);
    result.scales = scales.at<kWidth>(i);
    return result;
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t i, Loaded<kWidth> const& x, bool&) const {
    Pack<float, kWidth> sum;
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      // The code at the top of a word, and down again with its sign.
      int const q = bits == 8 ? static_cast<int>(x.codes << (24 - 8 * lane)) >> 24
                              : static_cast<int>(x.codes << (28 - 4 * lane)) >> 28;
      float const decoded = static_cast<float>(q) * x.scales.at[lane];
      float const product = weight * decoded;
      sum.at[lane] = canonical(x.sum.at[lane] + product);
    }
    store<kWidth>(accumulator + i, sum);
  }
};

/// Elements before the first quad of codes that one access reads.
std::uint64_t codes_to_quad(std::byte const* codes, int bits) noexcept {
  if (bits == 8) return elements_to_quad(codes);
  return reinterpret_cast<std::uintptr_t>(codes) % 2 == 0 ? 0 : 2;
}

}  // namespace

void quantize(ExecContext const& ctx, std::span<float const> corrected, int bits,
              std::uint64_t block_elements, Rounding rounding, RoundingKey const& key,
              std::span<std::byte> codes, std::span<float> scales,
              std::span<float> residual) noexcept {
  Coding const coding = coding_of(corrected.size(), bits, block_elements, rounding, key, codes,
                                  scales, residual, nullptr);
  launch_quantize(ctx, coding, CorrectedSource{corrected.data()},
                  can_use_quads(coding, corrected.data()));
}

// Also a run that is read twice may have its residual in place of e: a tile is written right after
// it was read for the second time, by the same threads.
Flags quantize_fused(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                     int bits, std::uint64_t block_elements, Rounding rounding,
                     RoundingKey const& key, std::span<std::byte> codes,
                     std::span<float> scales) noexcept {
  Coding const coding = coding_of(gradient.num_elements, bits, block_elements, rounding, key, codes,
                                  scales, residual.out, ctx.words);
  float const* const in = residual.in.empty() ? nullptr : residual.in.data();
  with_elements(gradient, [&]<typename T>(T const* elements) {
    launch_quantize(ctx, coding, FusedSource<T>{elements, in, residual.carry},
                    can_use_quads(coding, elements, in));
  });
  return 0;
}

void dequantize_add(ExecContext const& ctx, std::span<std::byte const> codes,
                    std::byte const* scales, int bits, std::uint64_t block_elements, float weight,
                    std::span<float> accumulator) noexcept {
  DequantizeAdd const operation = {
      {}, codes.data(), BlockScales(scales, block_elements), accumulator.data(), weight, bits};
  std::uint64_t const head = elements_to_quad(accumulator.data());
  stream<DequantizePolicy>(ctx, operation, accumulator.size(),
                           head == codes_to_quad(codes.data(), bits) ? head : kNeverAligned);
}

}  // namespace gradsieve::kernels::cuda
