// SPDX-License-Identifier: Apache-2.0
// The r-th largest of unsigned keys, without allocating and in time that no order of theirs can
// spoil.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <span>

namespace gradsieve::kernels::cpu {

/// The r largest of a set are those above `key` and `num_ties` of those equal to it.
template <typename Key>
struct Cut {
  Key key = 0;
  std::uint64_t num_ties = 0;
};

inline constexpr int kRadixBits = 11;
inline constexpr std::uint32_t kNumBuckets = 1U << kRadixBits;

/// Width of 2^radix_bits buckets that cover [low, high], as a power of two.
template <typename Key>
[[nodiscard]] int bucket_shift(Key low, Key high, int radix_bits = kRadixBits) noexcept {
  int const width_bits = static_cast<int>(std::bit_width(static_cast<Key>(high - low)));
  return std::max(0, width_bits - radix_bits);
}

/// The bucket that holds the r-th largest of those up to `bucket`; r becomes the rank within it.
[[nodiscard]] inline std::uint32_t find_bucket(std::uint32_t const* counts, std::uint32_t bucket,
                                               std::uint64_t& r) noexcept {
  for (; counts[bucket] < r; --bucket) r -= counts[bucket];
  return bucket;
}

/// Cuts off the r largest of a few keys.
template <typename Key>
[[nodiscard]] Cut<Key> sort_select(std::span<Key> keys, std::uint64_t r) noexcept {
  std::sort(keys.begin(), keys.end(), std::greater<>());
  Key const cut = keys[r - 1];
  auto const first_tie = std::lower_bound(keys.begin(), keys.end(), cut, std::greater<>());
  return {cut, r - static_cast<std::uint64_t>(first_tie - keys.begin())};
}

/// Cuts off the r largest, 1 ≤ r ≤ keys.size(); all keys are in [low, high]. Reorders the keys.
template <typename Key>
[[nodiscard]] Cut<Key> radix_select(std::span<Key> keys, Key low, Key high,
                                    std::uint64_t r) noexcept {
  constexpr std::size_t kFewKeys = 48;
  while (keys.size() > kFewKeys) {
    // As many buckets as keys: more would only cost the time to look through them.
    int const radix_bits = std::min(kRadixBits, static_cast<int>(std::bit_width(keys.size())));
    std::uint32_t const last_bucket = (1U << radix_bits) - 1;
    int const shift = bucket_shift(low, high, radix_bits);
    std::uint32_t counts[kNumBuckets];
    std::fill_n(counts, last_bucket + 1, 0U);
    for (Key const key : keys) ++counts[(key - low) >> shift];
    low += static_cast<Key>(Key{find_bucket(counts, last_bucket, r)} << shift);
    if (shift == 0) return {low, r};
    Key const width = std::min<Key>(high - low, static_cast<Key>((Key{1} << shift) - 1));
    high = low + width;
    std::size_t num_kept = 0;
    for (Key const key : keys) {
      keys[num_kept] = key;
      num_kept += static_cast<Key>(key - low) <= width ? 1 : 0;
    }
    keys = keys.first(num_kept);
  }
  return sort_select(keys, r);
}

}  // namespace gradsieve::kernels::cpu
