// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cpu/bit_chunks.hpp"
#include "kernels/cpu/bits.simd.hpp"
#include "kernels/cpu/simd_dispatch.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cpu {

void bitmap_encode(ExecContext const& ctx, IndexSpan index_set, std::uint64_t,
                   std::span<std::byte> out) noexcept {
  auto const indices = index_set.valid();
  constexpr std::uint64_t kGrainBytes = 8192;
  auto* const write = GRADSIEVE_PICK(write_ones);
  auto* const bytes = reinterpret_cast<unsigned char*>(out.data());
  auto const rank_of = [&](std::uint64_t bit) {
    return static_cast<std::uint64_t>(std::lower_bound(indices.begin(), indices.end(), bit) -
                                      indices.begin());
  };
  for_chunks(ctx, out.size(), kGrainBytes, [&](std::uint64_t begin, std::uint64_t end) {
    write(indices.data(), rank_of(begin * 8), rank_of(end * 8), 0, 0, begin * 8, bytes + begin,
          end - begin);
  });
}

bool bitmap_decode(ExecContext const& ctx, std::span<std::byte const> bitmap,
                   std::uint64_t universe, std::span<std::uint32_t> indices) noexcept {
  if (bitmap.size() != universe / 8 + (universe % 8 != 0 ? 1 : 0)) return false;
  if (universe % 8 != 0 && std::to_integer<unsigned>(bitmap.back()) >> (universe % 8) != 0) {
    return false;
  }
  auto const* const bytes = reinterpret_cast<unsigned char const*>(bitmap.data());
  BitChunks const chunks(ctx, bytes, bitmap.size());
  if (chunks.num_ones() != indices.size()) return false;
  auto* const read = GRADSIEVE_PICK(read_ones);
  chunks.for_each(
      [&](std::uint64_t begin, std::uint64_t end, std::uint64_t first, std::uint64_t last) {
        read(bytes + begin, end - begin, static_cast<std::uint32_t>(begin * 8),
             indices.data() + first, last - first);
      });
  return true;
}

}  // namespace gradsieve::kernels::cpu
