// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "kernels/elias_fano_layout.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels {

std::uint32_t elias_fano_low_bits(std::uint64_t universe, std::uint64_t num_indices) noexcept {
  return EliasFanoLayout(universe, num_indices).low_bits;
}

std::size_t elias_fano_bytes(std::uint64_t universe, std::uint64_t num_indices) noexcept {
  EliasFanoLayout const layout(universe, num_indices);
  return layout.low_bytes + layout.high_bytes;
}

namespace ref {
namespace {

void set_bit(std::span<std::byte> bytes, std::uint64_t i) noexcept {
  bytes[i / 8] |= std::byte{1} << (i % 8);
}

bool get_bit(std::span<std::byte const> bytes, std::uint64_t i) noexcept {
  return (bytes[i / 8] & std::byte{1} << (i % 8)) != std::byte{0};
}

bool all_zero_from(std::span<std::byte const> bytes, std::uint64_t i) noexcept {
  while (i < bytes.size() * 8 && !get_bit(bytes, i)) ++i;
  return i >= bytes.size() * 8;
}

}  // namespace

void elias_fano_encode(ExecContext const&, IndexSpan index_set, std::uint64_t universe,
                       std::span<std::byte> out) noexcept {
  auto const indices = index_set.valid();
  EliasFanoLayout const layout(universe, indices.size());
  std::span<std::byte> const low = out.first(layout.low_bytes);
  std::span<std::byte> const high = out.subspan(layout.low_bytes, layout.high_bytes);
  std::fill(out.begin(), out.end(), std::byte{0});
  for (std::uint64_t i = 0; i < indices.size(); ++i) {
    for (std::uint32_t bit = 0; bit < layout.low_bits; ++bit) {
      if ((indices[i] >> bit & 1U) != 0) set_bit(low, i * layout.low_bits + bit);
    }
    set_bit(high, (std::uint64_t{indices[i]} >> layout.low_bits) + i);
  }
}

bool elias_fano_decode(ExecContext const&, std::span<std::byte const> code, std::uint64_t universe,
                       std::span<std::uint32_t> indices) noexcept {
  EliasFanoLayout const layout(universe, indices.size());
  if (code.size() != layout.low_bytes + layout.high_bytes) return false;
  std::span<std::byte const> const low = code.first(layout.low_bytes);
  std::span<std::byte const> const high = code.subspan(layout.low_bytes);
  if (!all_zero_from(low, indices.size() * layout.low_bits)) return false;
  std::uint64_t found = 0;
  for (std::uint64_t position = 0; position < high.size() * 8; ++position) {
    if (!get_bit(high, position)) continue;
    if (found == indices.size()) return false;
    std::uint64_t index = (position - found) << layout.low_bits;
    for (std::uint32_t bit = 0; bit < layout.low_bits; ++bit) {
      if (get_bit(low, found * layout.low_bits + bit)) index |= std::uint64_t{1} << bit;
    }
    if (index >= universe || (found != 0 && index <= indices[found - 1])) return false;
    indices[found++] = static_cast<std::uint32_t>(index);
  }
  return found == indices.size();
}

}  // namespace ref
}  // namespace gradsieve::kernels
