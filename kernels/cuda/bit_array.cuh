// SPDX-License-Identifier: Apache-2.0
// Arrays of bits at any address, least significant bit first: set by many threads at once, and read
// a word at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/select.cuh"
#include "kernels/select_layout.hpp"

namespace gradsieve::kernels::cuda {

struct BitPolicy {
  static constexpr unsigned threads = 256, items_per_thread = 1, min_blocks = 4;
};
inline constexpr unsigned kTileWords = kSelectTile / 4;  ///< of 32 bits: a tile is 4096 bytes

/// Bits that are 0 before. They are set by words of the memory around them: what else lies in a
/// word is kept.
class BitWriter {
 public:
  __device__ explicit BitWriter(std::byte* bytes) {
    auto const address = reinterpret_cast<std::uintptr_t>(bytes);
    words_ = reinterpret_cast<std::uint32_t*>(address & ~std::uintptr_t{3});
    first_bit_ = (address & 3) * 8;
  }

  /// The low `count` ≤ 32 bits of `bits`, all others being 0, at position `at`.
  __device__ void set(std::uint64_t at, std::uint32_t bits) const {
    if (bits == 0) return;
    std::uint64_t const position = first_bit_ + at;
    auto const shift = static_cast<unsigned>(position % 32);
    std::uint32_t* const word = words_ + position / 32;
    atomicOr(word, bits << shift);
    std::uint32_t const rest = shift == 0 ? 0 : bits >> (32 - shift);
    if (rest != 0) atomicOr(word + 1, rest);
  }

 private:
  std::uint32_t* words_;
  std::uint64_t first_bit_;
};

struct BitReader {
  unsigned char const* bytes;
  std::uint64_t num_bytes;
  bool is_aligned;

  __host__ __device__ BitReader(std::byte const* from, std::uint64_t count) noexcept
      : bytes(reinterpret_cast<unsigned char const*>(from)),
        num_bytes(count),
        is_aligned(reinterpret_cast<std::uintptr_t>(from) % 4 == 0) {}
  explicit BitReader(std::span<std::byte const> from) noexcept
      : BitReader(from.data(), from.size()) {}

  /// Bits 32·i ... 32·i + 31; those behind the end are 0.
  [[nodiscard]] __device__ std::uint32_t word(std::uint64_t i) const {
    if (is_aligned && (i + 1) * 4 <= num_bytes) {
      return reinterpret_cast<std::uint32_t const*>(bytes)[i];
    }
    std::uint32_t result = 0;
    for (unsigned j = 0; j < 4; ++j) {
      if (i * 4 + j < num_bytes) result |= std::uint32_t{bytes[i * 4 + j]} << (8 * j);
    }
    return result;
  }
  /// `count` < 32 bits from position `at` on.
  [[nodiscard]] __device__ std::uint32_t bits(std::uint64_t at, unsigned count) const {
    auto const shift = static_cast<unsigned>(at % 32);
    std::uint64_t window = word(at / 32);
    if (shift + count > 32) window |= static_cast<std::uint64_t>(word(at / 32 + 1)) << 32;
    return static_cast<std::uint32_t>(window >> shift) & ((1U << count) - 1U);
  }
};

/// How many ones each tile of bytes has.
static __global__ void __launch_bounds__(BitPolicy::threads, BitPolicy::min_blocks)
    count_ones_kernel(BitReader bits, Cut<std::uint32_t>* no_cut, SelectTile* tiles,
                      std::uint64_t num_tiles) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *no_cut = {};
  for (std::uint64_t tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
    std::uint64_t count = 0;
    for (unsigned i = threadIdx.x; i < kTileWords; i += BitPolicy::threads) {
      count += static_cast<unsigned>(__popc(static_cast<int>(bits.word(tile * kTileWords + i))));
    }
    std::uint64_t total;
    static_cast<void>(scan_block<BitPolicy::threads>(count, total));
    if (threadIdx.x == 0) {
      SelectTile record = {};
      record.num_above = static_cast<std::uint32_t>(total);
      tiles[tile] = record;
    }
  }
}

/// indices[r] ← decoder.index(position of one number r, r), in order; the decoder says what is
/// wrong by answering with kNoIndex. As many ones as indices are expected.
inline constexpr std::uint64_t kNoIndex = ~std::uint64_t{0};
template <typename Decoder>
__global__ void __launch_bounds__(BitPolicy::threads, BitPolicy::min_blocks)
    decode_ones_kernel(BitReader bits, Decoder decoder, SelectTile const* tiles,
                       std::uint64_t num_tiles, SparseCounts const* counts, std::uint32_t* indices,
                       std::uint64_t num_indices, StepWords* words) {
  bool is_wrong = counts->num_indices + counts->num_overflowed != num_indices;
  for (std::uint64_t tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
    std::uint64_t place = tiles[tile].place;
    for (unsigned begin = 0; begin < kTileWords; begin += BitPolicy::threads) {
      std::uint64_t const at = tile * kTileWords + begin + threadIdx.x;
      std::uint32_t word = bits.word(at);
      std::uint64_t const own = static_cast<unsigned>(__popc(static_cast<int>(word)));
      std::uint64_t total;
      std::uint64_t rank = place + scan_block<BitPolicy::threads>(own, total);
      for (; word != 0; word &= word - 1, ++rank) {
        if (rank >= num_indices) break;
        std::uint64_t const position =
            at * 32 + static_cast<unsigned>(__ffs(static_cast<int>(word))) - 1;
        std::uint64_t const index = decoder.index(position, rank);
        is_wrong = is_wrong || index == kNoIndex;
        indices[rank] = static_cast<std::uint32_t>(index);
      }
      place += total;
    }
  }
  raise(words, kStepCorrupt, is_wrong);
}

/// Decodes a row of bits whose ones stand for indices. Indices that no one stands for become
/// 2^32 − 1, which no kernel follows.
template <typename Decoder>
void decode_ones(ExecContext const& ctx, std::span<std::byte const> row, Decoder const& decoder,
                 std::span<std::uint32_t> indices) noexcept {
  std::uint64_t const num_tiles = num_tiles_of(row.size());
  WorkspaceScope const scope(*ctx.workspace);
  std::span<Cut<std::uint32_t>> const cut = ctx.workspace->take<Cut<std::uint32_t>>(1);
  std::span<SparseCounts> const counts = ctx.workspace->take<SparseCounts>(1);
  std::span<SelectTile> const tiles = ctx.workspace->take<SelectTile>(num_tiles);
  if (cut.empty() || counts.empty() || tiles.size() != num_tiles) {
    keep_failure(ctx, kWorkspaceTooSmall);
    return;
  }
  fill(ctx, indices.data(), 0xff, indices.size_bytes());
  BitReader const bits(row);
  launch(ctx, grid_of(num_tiles), BitPolicy::threads, 0, count_ones_kernel, bits, cut.data(),
         tiles.data(), num_tiles);
  launch(ctx, 1, ScanPolicy::threads, 0, place_tiles_kernel<std::uint32_t>, cut.data(),
         tiles.data(), num_tiles, std::uint64_t{indices.size()}, counts.data());
  launch(ctx, grid_of(num_tiles), BitPolicy::threads, 0, decode_ones_kernel<Decoder>, bits, decoder,
         tiles.data(), num_tiles, counts.data(), indices.data(), std::uint64_t{indices.size()},
         ctx.words);
}

}  // namespace gradsieve::kernels::cuda
