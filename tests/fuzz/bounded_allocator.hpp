// SPDX-License-Identifier: Apache-2.0
// An allocator that refuses to go beyond a stated bound: what a decoder of foreign bytes may take.
// Link bounded_allocator.cpp into the program.
#pragma once

#include <cstddef>

namespace gradsieve::testing {

/// While it lives, this thread may allocate `num_bytes` bytes in all, whoever asks for them; the
/// program prints what was asked for and aborts when it is more. Bounds do not nest.
class AllocationBound {
 public:
  explicit AllocationBound(std::size_t num_bytes) noexcept;
  ~AllocationBound();
  AllocationBound(AllocationBound const&) = delete;
  AllocationBound& operator=(AllocationBound const&) = delete;

  /// Of the bytes allowed, those not yet taken.
  [[nodiscard]] static std::size_t left() noexcept;
};

}  // namespace gradsieve::testing
