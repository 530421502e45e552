// SPDX-License-Identifier: Apache-2.0
// The sum of what a block quantizer sent, as one pass over arrays.
#pragma once

#include "kernels/cuda/rows.cuh"

namespace gradsieve::kernels::cuda {

struct DequantizeAdd : OnlyIf {
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
  /// Code `lane` of those that lie side by side in a word: to the top, and down again with its
  /// sign.
  [[nodiscard]] __device__ float decoded(std::uint32_t word, unsigned lane, float scale) const {
    int const q = bits == 8 ? static_cast<int>(word << (24 - 8 * lane)) >> 24
                            : static_cast<int>(word << (28 - 4 * lane)) >> 28;
    return static_cast<float>(q) * scale;
  }

  struct Chunk {
    std::uint32_t codes[kRows];
  };
  [[nodiscard]] __device__ Chunk load_chunk(std::uint64_t chunk) const {
    Chunk result;
    std::uint64_t const first = chunk * kChunkElements + threadIdx.x % 32 * 4;
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      result.codes[row] = load_codes<4>(first + row * kRowElements);
    }
    return result;
  }
  [[nodiscard]] __device__ std::uint32_t row_of(Chunk const& loaded, unsigned row) const {
    return loaded.codes[row];
  }

  /// All but the sum.
  template <int kWidth>
  __device__ Loaded<kWidth> load_sent(std::uint64_t i) const {
    return {{}, load_codes<kWidth>(i), scales.at<kWidth>(i)};
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
      float const product =
          weight * decoded(x.codes, static_cast<unsigned>(lane), x.scales.at[lane]);
      sum.at[lane] = canonical(x.sum.at[lane] + product);
    }
    store<kWidth>(accumulator + i, sum);
  }
};

}  // namespace gradsieve::kernels::cuda
