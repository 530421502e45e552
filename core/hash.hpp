// SPDX-License-Identifier: Apache-2.0
// The hash by which ranks find out that they planned the same thing.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "core/philox.hpp"

namespace gradsieve {

/// A 64-bit hash of a sequence of words, order-sensitive and the same on every machine:
///
///   h_0 = mix64(salt),   h_{i+1} = mix64(h_i xor w_i)
///
/// mix64 is a bijection, so two sequences that differ in one word never collide. A text is its
/// length, then its bytes in little-endian words, the last one filled with zeros: "ab", "c" and
/// "a", "bc" differ. Guards against mistakes, not against malice.
class PlanHash {
 public:
  constexpr explicit PlanHash(std::uint64_t salt = 0) noexcept : state_(mix64(salt)) {}

  template <typename T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) constexpr PlanHash& add(T value) noexcept {
    state_ = mix64(state_ ^ static_cast<std::uint64_t>(value));
    return *this;
  }
  constexpr PlanHash& add(double value) noexcept {
    return add(std::bit_cast<std::uint64_t>(value));
  }
  constexpr PlanHash& add(std::string_view text) noexcept {
    add(text.size());
    for (std::size_t i = 0; i < text.size(); i += 8) {
      std::uint64_t word = 0;
      for (std::size_t j = i; j < text.size() && j < i + 8; ++j) {
        word |= std::uint64_t{static_cast<unsigned char>(text[j])} << (8 * (j - i));
      }
      add(word);
    }
    return *this;
  }
  // Without this a literal would be taken for a bool.
  constexpr PlanHash& add(char const* text) noexcept { return add(std::string_view(text)); }

  /// Never 0, which stands for "no plan" in a payload header.
  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return state_ == 0 ? 1 : state_; }

 private:
  std::uint64_t state_;
};

}  // namespace gradsieve
