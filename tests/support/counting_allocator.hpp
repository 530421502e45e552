// SPDX-License-Identifier: Apache-2.0
// Counts every allocation of the process, so that a test can expect none. Link
// counting_allocator.cpp into the test: it replaces malloc and operator new (under sanitizers
// operator new alone).
#pragma once

#include <cstdint>

namespace gradsieve::testing {

/// Allocations of all threads since the program started.
[[nodiscard]] std::uint64_t num_allocations() noexcept;

/// Those by operator new alone: of C++ code.
[[nodiscard]] std::uint64_t num_cxx_allocations() noexcept;

/// Counts from its construction on.
class AllocationCount {
 public:
  AllocationCount() noexcept : start_(num_allocations()) {}
  [[nodiscard]] std::uint64_t count() const noexcept { return num_allocations() - start_; }

 private:
  std::uint64_t start_;
};

}  // namespace gradsieve::testing
