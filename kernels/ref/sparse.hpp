// SPDX-License-Identifier: Apache-2.0
// The elements that a selection stands for, in any precision.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace gradsieve::kernels::ref {

/// visit(element, position): the elements of each index in turn, and the place of their value.
template <typename Visit>
void for_selected(std::span<std::uint32_t const> indices, std::uint64_t granularity,
                  std::uint64_t num_elements, Visit const& visit) noexcept {
  std::uint64_t position = 0;
  for (std::uint64_t const index : indices) {
    std::uint64_t const end = std::min((index + 1) * granularity, num_elements);
    for (std::uint64_t i = index * granularity; i < end; ++i) visit(i, position++);
  }
}

/// values ← x at the selected elements, x ← +0 there.
template <typename T>
void take_selected(std::span<std::uint32_t const> indices, std::uint64_t granularity,
                   std::span<T> x, std::span<T> values) noexcept {
  for_selected(indices, granularity, x.size(), [&](std::uint64_t i, std::uint64_t position) {
    values[position] = x[i];
    x[i] = T{0};
  });
}

}  // namespace gradsieve::kernels::ref
