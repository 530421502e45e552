// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>

#include "kernels/cpu/bit_chunks.hpp"
#include "kernels/cpu/bits.simd.hpp"
#include "kernels/cpu/elias_fano.simd.hpp"
#include "kernels/cpu/simd_dispatch.hpp"
#include "kernels/elias_fano_layout.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cpu {
namespace {

unsigned char* bytes_of(std::span<std::byte> bytes) noexcept {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

unsigned char const* bytes_of(std::span<std::byte const> bytes) noexcept {
  return reinterpret_cast<unsigned char const*>(bytes.data());
}

// The first i whose one stands at `position` or behind it.
std::uint64_t rank_of(std::span<std::uint32_t const> indices, std::uint32_t low_bits,
                      std::uint64_t position) noexcept {
  std::uint64_t begin = 0;
  std::uint64_t end = indices.size();
  while (begin < end) {
    std::uint64_t const middle = begin + (end - begin) / 2;
    if ((indices[middle] >> low_bits) + middle < position) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

bool is_zero_from_bit(std::span<std::byte const> bytes, std::uint64_t bit) noexcept {
  if (bit / 8 >= bytes.size()) return true;
  if (std::to_integer<unsigned>(bytes[bit / 8]) >> (bit % 8) != 0) return false;
  auto const rest = bytes.subspan(bit / 8 + 1);
  return std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Ascending order within the chunks is known; where each begins, the index before it is its
// neighbour's.
bool ascends_between_chunks(BitChunks const& chunks,
                            std::span<std::uint32_t const> indices) noexcept {
  std::atomic<bool> ascends = true;
  chunks.for_each([&](std::uint64_t, std::uint64_t, std::uint64_t first, std::uint64_t last) {
    if (first != 0 && first != last && indices[first] <= indices[first - 1]) {
      ascends.store(false, std::memory_order_relaxed);
    }
  });
  return ascends.load(std::memory_order_relaxed);
}

}  // namespace

void elias_fano_encode(ExecContext const& ctx, IndexSpan index_set, std::uint64_t universe,
                       std::span<std::byte> out) noexcept {
  auto const indices = index_set.valid();
  EliasFanoLayout const layout(universe, indices.size());
  unsigned char* const low = bytes_of(out);
  unsigned char* const high = low + layout.low_bytes;
  if (layout.low_bits != 0) {
    // A multiple of eight indices fills whole bytes.
    static_assert(kGrainElements % 8 == 0);
    auto* const pack = GRADSIEVE_PICK(pack_low_parts);
    for_chunks(ctx, indices.size(), kGrainElements, [&](std::uint64_t begin, std::uint64_t end) {
      pack(indices.data() + begin, end - begin, layout.low_bits, low + begin / 8 * layout.low_bits);
    });
  }
  constexpr std::uint64_t kGrainBytes = 8192;
  auto* const write = GRADSIEVE_PICK(write_ones);
  for_chunks(ctx, layout.high_bytes, kGrainBytes, [&](std::uint64_t begin, std::uint64_t end) {
    write(indices.data(), rank_of(indices, layout.low_bits, begin * 8),
          rank_of(indices, layout.low_bits, end * 8), layout.low_bits, 1, begin * 8, high + begin,
          end - begin);
  });
}

bool elias_fano_decode(ExecContext const& ctx, std::span<std::byte const> code,
                       std::uint64_t universe, std::span<std::uint32_t> indices) noexcept {
  EliasFanoLayout const layout(universe, indices.size());
  if (code.size() != layout.low_bytes + layout.high_bytes) return false;
  if (indices.empty() || universe == 0) return indices.empty();
  std::span<std::byte const> const high = code.subspan(layout.low_bytes);
  if (!is_zero_from_bit(code.first(layout.low_bytes), indices.size() * layout.low_bits) ||
      !is_zero_from_bit(high, layout.num_high_bits - 1)) {
    return false;
  }
  BitChunks const chunks(ctx, bytes_of(high), high.size());
  if (chunks.num_ones() != indices.size()) return false;

  // The number of ones is right and the last bit is a zero, so no high part exceeds that of the
  // universe: from here on only the order and the last index can be wrong.
  auto* const unpack = GRADSIEVE_PICK(unpack_indices);
  std::atomic<bool> ascends = true;
  chunks.for_each(
      [&](std::uint64_t begin, std::uint64_t end, std::uint64_t first, std::uint64_t last) {
        EliasFanoChunk const chunk = {
            .code = bytes_of(code),
            .num_code_bytes = code.size(),
            .low_bits = layout.low_bits,
            .high = bytes_of(high) + begin,
            .num_high_bytes = end - begin,
            .first_position = begin * 8,
            .first = first,
            .last = last,
        };
        if (!unpack(chunk, indices.data())) ascends.store(false, std::memory_order_relaxed);
      });
  return ascends.load(std::memory_order_relaxed) && ascends_between_chunks(chunks, indices) &&
         indices.back() < universe;
}

}  // namespace gradsieve::kernels::cpu
