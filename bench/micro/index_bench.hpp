// SPDX-License-Identifier: Apache-2.0
// Index coding by itself: speed beside memcpy of the indices, size beside their entropy.
#pragma once

#include <cstdint>
#include <vector>

#include "gradsieve/memory.hpp"

#include "bench/micro/paired.hpp"

namespace gradsieve::bench {

class IndexBench {
 public:
  IndexBench(std::uint64_t universe, double density);

  [[nodiscard]] PairedRounds::Work copy();
  [[nodiscard]] PairedRounds::Work encode();
  [[nodiscard]] PairedRounds::Work decode();
  [[nodiscard]] std::uint64_t num_indices() const { return indices_.size(); }
  [[nodiscard]] double bits_per_index() const;
  /// Bits over log2 of the number of index sets of this size.
  [[nodiscard]] double entropy_ratio() const;

 private:
  std::uint64_t universe_;
  std::vector<std::uint32_t> indices_, decoded_;
  Buffer code_;
};

}  // namespace gradsieve::bench
