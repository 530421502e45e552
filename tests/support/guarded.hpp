// SPDX-License-Identifier: Apache-2.0
// Memory with canaries before and behind it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace gradsieve::testing {

/// `count` elements, aligned to 256 bytes plus `offset_bytes`, between two stretches of canaries.
template <typename T>
class Guarded {
 public:
  explicit Guarded(std::size_t count, std::size_t offset_bytes = 0)
      : memory_(count * sizeof(T) + 2 * kGuardBytes + kAlignment, kCanary), count_(count) {
    auto const address = reinterpret_cast<std::uintptr_t>(memory_.data()) + kGuardBytes;
    auto const aligned = (address + kAlignment - 1) / kAlignment * kAlignment;
    begin_ = kGuardBytes + (aligned - address) + offset_bytes;
    std::memset(memory_.data() + begin_, 0, count * sizeof(T));
  }
  explicit Guarded(std::vector<T> const& values, std::size_t offset_bytes = 0)
      : Guarded(values.size(), offset_bytes) {
    std::copy(values.begin(), values.end(), span().begin());
  }

  [[nodiscard]] std::span<T> span() noexcept {
    return {reinterpret_cast<T*>(memory_.data() + begin_), count_};
  }
  [[nodiscard]] std::vector<T> copy() { return {span().begin(), span().end()}; }

  /// True if nothing was stored before or behind.
  [[nodiscard]] bool intact() const {
    auto const is_canary = [](std::byte b) { return b == kCanary; };
    auto const end = begin_ + count_ * sizeof(T);
    return std::all_of(memory_.begin(), memory_.begin() + as_offset(begin_), is_canary) &&
           std::all_of(memory_.begin() + as_offset(end), memory_.end(), is_canary);
  }

 private:
  static constexpr std::byte kCanary{0xC5};
  static constexpr std::size_t kGuardBytes = 512;
  static constexpr std::size_t kAlignment = 256;
  static std::ptrdiff_t as_offset(std::size_t n) { return static_cast<std::ptrdiff_t>(n); }

  std::vector<std::byte> memory_;
  std::size_t count_;
  std::size_t begin_;
};

}  // namespace gradsieve::testing
