// SPDX-License-Identifier: Apache-2.0
// The forms of a coded index set under one name: docs/wire_format.md, section "Index forms".
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gradsieve/wire.hpp"

#include "kernels/ops.hpp"

namespace gradsieve::kernels {

/// Values are on the wire; 3 and 4 are reserved.
enum class IndexForm : std::uint32_t { shared = 0, bitmap = 1, elias_fano = 2 };

/// Exact bytes of `num_indices` indices below `universe`.
[[nodiscard]] inline std::size_t index_bytes(IndexForm form, std::uint64_t universe,
                                             std::uint64_t num_indices) noexcept {
  switch (form) {
    case IndexForm::shared:
      return 0;
    case IndexForm::bitmap:
      return wire::bytes_for_bits(universe);
    case IndexForm::elias_fano:
      return elias_fano_bytes(universe, num_indices);
  }
  return 0;
}

/// Most bytes of at most `num_indices` indices.
[[nodiscard]] inline std::size_t index_bound(IndexForm form, std::uint64_t universe,
                                             std::uint64_t num_indices) noexcept {
  std::size_t bound = index_bytes(form, universe, num_indices);
  if (form != IndexForm::elias_fano) return bound;
  // Between two widths of the low part the code grows with the count, so only the largest count of
  // each width matters: that of l low bits is universe >> l.
  for (std::uint64_t count = universe; count > 0; count /= 2) {
    if (count <= num_indices) bound = std::max(bound, index_bytes(form, universe, count));
  }
  return bound;
}

/// `index(auto)`: the form with the fewest bytes, the lower one on a tie.
[[nodiscard]] inline IndexForm smallest_index_form(std::uint64_t universe,
                                                   std::uint64_t num_indices) noexcept {
  std::size_t const bitmap = index_bytes(IndexForm::bitmap, universe, num_indices);
  std::size_t const elias_fano = index_bytes(IndexForm::elias_fano, universe, num_indices);
  return bitmap <= elias_fano ? IndexForm::bitmap : IndexForm::elias_fano;
}

/// `out` has index_bytes() bytes.
inline void encode_indices(ExecContext const& ctx, IndexForm form,
                           std::span<std::uint32_t const> indices, std::uint64_t universe,
                           std::span<std::byte> out) noexcept {
  if (form == IndexForm::bitmap) bitmap_encode(ctx, indices, universe, out);
  if (form == IndexForm::elias_fano) elias_fano_encode(ctx, indices, universe, out);
}

/// False unless the bytes, which a peer wrote, are the code of exactly indices.size() ascending
/// indices below `universe` in a form that carries indices.
[[nodiscard]] inline bool decode_indices(ExecContext const& ctx, std::uint32_t form,
                                         std::span<std::byte const> code, std::uint64_t universe,
                                         std::span<std::uint32_t> indices) noexcept {
  if (form != static_cast<std::uint32_t>(IndexForm::bitmap) &&
      form != static_cast<std::uint32_t>(IndexForm::elias_fano)) {
    return false;
  }
  auto const known = static_cast<IndexForm>(form);
  if (indices.size() > universe || code.size() != index_bytes(known, universe, indices.size())) {
    return false;
  }
  return known == IndexForm::bitmap ? bitmap_decode(ctx, code, universe, indices)
                                    : elias_fano_decode(ctx, code, universe, indices);
}

}  // namespace gradsieve::kernels
