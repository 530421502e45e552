// SPDX-License-Identifier: Apache-2.0
// Where the parts of an Elias-Fano code lie (docs/wire_format.md, section "Index forms").
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.hpp"

namespace gradsieve::kernels {

struct EliasFanoLayout {
  std::uint32_t low_bits = 0;       ///< l: so many low bits of an index are stored as they are
  std::size_t low_bytes = 0;        ///< the low parts come first
  std::size_t high_bytes = 0;       ///< the unary high parts follow
  std::uint64_t num_high_bits = 0;  ///< the last of them is always 0

  constexpr EliasFanoLayout(std::uint64_t universe, std::uint64_t num_indices) noexcept {
    if (universe == 0 || num_indices == 0) return;
    for (std::uint64_t spacing = universe / num_indices; spacing > 1; spacing /= 2) ++low_bits;
    low_bytes = static_cast<std::size_t>((num_indices * low_bits + 7) / 8);
    num_high_bits = num_indices + ((universe - 1) >> low_bits) + 1;
    high_bytes = static_cast<std::size_t>((num_high_bits + 7) / 8);
  }
};

}  // namespace gradsieve::kernels
