// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/ops.hpp"

namespace gradsieve::kernels::ref {

void bitmap_encode(ExecContext const&, IndexSpan indices, std::uint64_t,
                   std::span<std::byte> out) noexcept {
  std::fill(out.begin(), out.end(), std::byte{0});
  for (std::uint32_t const index : indices.valid()) out[index / 8] |= std::byte{1} << (index % 8);
}

bool bitmap_decode(ExecContext const&, std::span<std::byte const> bitmap, std::uint64_t universe,
                   std::span<std::uint32_t> indices) noexcept {
  if (bitmap.size() != universe / 8 + (universe % 8 != 0)) return false;
  std::uint64_t found = 0;
  for (std::uint64_t bit = 0; bit < bitmap.size() * 8; ++bit) {
    if ((bitmap[bit / 8] & std::byte{1} << (bit % 8)) == std::byte{0}) continue;
    if (bit >= universe || found == indices.size()) return false;
    indices[found++] = static_cast<std::uint32_t>(bit);
  }
  return found == indices.size();
}

}  // namespace gradsieve::kernels::ref
