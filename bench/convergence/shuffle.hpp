// SPDX-License-Identifier: Apache-2.0
// A seeded order of the training examples that needs no memory and is the same on every platform.
#pragma once

#include <bit>
#include <cstdint>

namespace gradsieve::study {

/// Mixes 64 bits (the finaliser of splitmix64): every input bit moves every output bit.
[[nodiscard]] constexpr std::uint64_t mix_bits(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// A permutation of 0 ... count - 1, chosen by seed and epoch.
///
/// Four Feistel rounds permute the next power of four; positions that fall outside are permuted
/// again until they fall inside, which keeps it a permutation.
class Shuffle {
 public:
  constexpr Shuffle(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch) noexcept
      : count_(count), key_(mix_bits(seed ^ mix_bits(epoch))) {
    auto const bits = static_cast<unsigned>(std::bit_width(count > 1 ? count - 1 : 1));
    half_bits_ = (bits + 1) / 2;
  }

  [[nodiscard]] constexpr std::uint64_t operator()(std::uint64_t position) const noexcept {
    do {
      position = permute(position);
    } while (position >= count_);
    return position;
  }

 private:
  [[nodiscard]] constexpr std::uint64_t permute(std::uint64_t x) const noexcept {
    std::uint64_t const mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = x >> half_bits_;
    std::uint64_t right = x & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      std::uint64_t const next = left ^ (mix_bits(right ^ mix_bits(key_ + round)) & mask);
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  std::uint64_t count_;
  std::uint64_t key_;
  unsigned half_bits_ = 0;
};

}  // namespace gradsieve::study
