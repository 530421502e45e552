// SPDX-License-Identifier: Apache-2.0
// Who owns which part of an array that all ranks have.
#pragma once

#include <cstdint>

namespace gradsieve::exchange {

/// Elements [begin, end) of an array.
struct ElementRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  [[nodiscard]] constexpr std::uint64_t num_elements() const noexcept { return end - begin; }
  friend constexpr bool operator==(ElementRange, ElementRange) noexcept = default;
};

/// The shard of `owner` among `world_size`: contiguous, in rank order, cut at multiples of
/// `block_elements`, the numbers of blocks differ by at most one, and the lower ranks have more.
///
///   q = ⌊blocks / P⌋, m = blocks mod P;   begin = (owner·q + min(owner, m))·block_elements
[[nodiscard]] constexpr ElementRange shard_range(std::uint64_t num_elements,
                                                 std::uint64_t block_elements, int world_size,
                                                 int owner) noexcept {
  std::uint64_t const ranks = static_cast<std::uint64_t>(world_size);
  std::uint64_t const blocks =
      num_elements / block_elements + (num_elements % block_elements != 0 ? 1 : 0);
  auto const border = [&](std::uint64_t rank) {
    std::uint64_t const more = blocks % ranks;
    std::uint64_t const block = rank * (blocks / ranks) + (rank < more ? rank : more);
    // The end of the last, short block would be a product beyond the array, perhaps beyond 64 bits.
    return block == blocks ? num_elements : block * block_elements;
  };
  std::uint64_t const rank = static_cast<std::uint64_t>(owner);
  return {border(rank), border(rank + 1)};
}

/// Elements of the largest shard, which is rank 0's unless the last block is short.
[[nodiscard]] constexpr std::uint64_t max_shard_elements(std::uint64_t num_elements,
                                                         std::uint64_t block_elements,
                                                         int world_size) noexcept {
  return shard_range(num_elements, block_elements, world_size, 0).num_elements();
}

}  // namespace gradsieve::exchange
