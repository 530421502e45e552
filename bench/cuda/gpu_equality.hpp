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
  std::uint64_t differing_words = 0;  ///< of all repeats, against the first
  bool equals_ref = true;
  std::string first_difference;  ///< to ref; empty if there is none

  [[nodiscard]] bool holds() const { return differing_words == 0 && equals_ref; }
};

/// Runs call i `repeats` times and, if `with_ref`, compares the first with ref on host copies of
/// its arrays: for small ones.
[[nodiscard]] Equality check_equality(GpuMemory& memory, GpuCase const& gpu_case, std::size_t i,
                                      std::uint64_t repeats, bool with_ref);

}  // namespace gradsieve::bench
