// SPDX-License-Identifier: Apache-2.0
// Correctness beside speed: each call gives the bytes of ref, and the same bytes every time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "bench/cuda/gpu_memory.hpp"

namespace gradsieve::bench {

struct Equality {
  std::uint64_t repeats = 0;
  std::uint64_t differing_bytes = 0;  ///< of all repeats, against the first
  bool equals_ref = true;
  std::string first_difference;  ///< to ref; empty if there is none

  [[nodiscard]] bool holds() const { return differing_bytes == 0 && equals_ref; }
};

/// Runs call i once beside ref, on host copies of its arrays, and `repeats` times in all.
[[nodiscard]] Equality check_equality(GpuMemory& memory, GpuCase const& gpu_case, std::size_t i,
                                      std::uint64_t repeats);

}  // namespace gradsieve::bench
