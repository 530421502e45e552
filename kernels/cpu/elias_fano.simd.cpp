// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/elias_fano.simd.hpp"

#include "kernels/cpu/bit_lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

/// Indices whose low parts are unpacked at a time.
constexpr std::uint64_t kTileIndices = 1024;

/// Low parts of the indices [first, last), from out on.
void unpack_low_parts(EliasFanoChunk const& chunk, std::uint64_t first, std::uint64_t last,
                      std::uint32_t* out) {
  std::uint64_t const mask = (std::uint64_t{1} << chunk.low_bits) - 1;
  for (std::uint64_t i = first; i < last; ++i) {
    std::uint64_t const bit = i * chunk.low_bits;
    std::uint64_t const word = load_word(chunk.code + bit / 8, chunk.num_code_bytes - bit / 8);
    out[i - first] = static_cast<std::uint32_t>(word >> (bit % 8) & mask);
  }
}

bool ascends_strictly(std::uint32_t const* indices, std::uint64_t count) {
  std::uint32_t is_wrong = 0;
  for (std::uint64_t i = 1; i < count; ++i) is_wrong |= indices[i] <= indices[i - 1] ? 1U : 0U;
  return is_wrong == 0;
}

}  // namespace

namespace GRADSIEVE_TARGET {

void pack_low_parts(std::uint32_t const* indices, std::uint64_t count, std::uint32_t low_bits,
                    unsigned char* out) {
  std::uint64_t const mask = (std::uint64_t{1} << low_bits) - 1;
  std::uint64_t word = 0;
  std::uint32_t num_bits = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t const low = indices[i] & mask;
    word |= low << num_bits;
    num_bits += low_bits;
    if (num_bits < 64) continue;
    store_word(out, 8, word);
    out += 8;
    num_bits -= 64;
    word = low >> (low_bits - num_bits);
  }
  store_word(out, (num_bits + 7) / 8, word);
}

bool unpack_indices(EliasFanoChunk const& chunk, std::uint32_t* indices) {
  alignas(64) std::uint32_t low[kTileIndices];
  std::uint64_t tile = chunk.first;
  std::uint64_t tile_end = chunk.first;
  std::uint64_t i = chunk.first;
  std::uint64_t position = chunk.first_position;
  for (std::uint64_t at = 0; at < chunk.num_high_bytes; at += 8, position += 64) {
    std::uint64_t word = load_word(chunk.high + at, chunk.num_high_bytes - at);
    for (; word != 0; word &= word - 1, ++i) {
      if (i == tile_end) {
        tile = i;
        tile_end = chunk.last - i < kTileIndices ? chunk.last : i + kTileIndices;
        unpack_low_parts(chunk, tile, tile_end, low);
      }
      std::uint64_t const high = position + lowest_one(word) - i;
      indices[i] = static_cast<std::uint32_t>(high << chunk.low_bits) | low[i - tile];
    }
  }
  return ascends_strictly(indices + chunk.first, chunk.last - chunk.first);
}

}  // namespace GRADSIEVE_TARGET
}  // namespace gradsieve::kernels::cpu
