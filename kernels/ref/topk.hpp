// SPDX-License-Identifier: Apache-2.0
// The choice of the k largest magnitudes, in any precision.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <type_traits>

namespace gradsieve::kernels::ref {

/// |x| as an integer of the same order: the bits without the sign, so that +0 and −0 are equal.
template <typename T>
[[nodiscard]] constexpr auto magnitude(T x) noexcept {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  return static_cast<Bits>(std::bit_cast<Bits>(x) << 1) >> 1;
}

/// chosen ← where the chosen.size() ≤ c.size() largest |c| stand, ascending; ties go to the lower
/// index. The smallest chosen magnitude is found bit by bit, from the top.
template <typename T>
void choose_topk(std::span<T const> c, std::span<std::uint32_t> chosen) noexcept {
  using Bits = decltype(magnitude(T{}));
  auto const count_from = [c](Bits least) {
    return static_cast<std::size_t>(
        std::count_if(c.begin(), c.end(), [least](T x) { return magnitude(x) >= least; }));
  };
  Bits cut = 0;
  for (Bits bit = Bits{1} << (8 * sizeof(T) - 2); bit != 0; bit >>= 1) {
    if (count_from(cut | bit) >= chosen.size()) cut |= bit;
  }
  std::size_t num_ties = chosen.size() - std::min(chosen.size(), count_from(cut + 1));
  std::size_t num_chosen = 0;
  for (std::size_t i = 0; i < c.size(); ++i) {
    bool const is_tie = magnitude(c[i]) == cut && num_ties > 0;
    if (is_tie) --num_ties;
    if (is_tie || magnitude(c[i]) > cut) chosen[num_chosen++] = static_cast<std::uint32_t>(i);
  }
}

}  // namespace gradsieve::kernels::ref
