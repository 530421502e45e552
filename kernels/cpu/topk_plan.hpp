// SPDX-License-Identifier: Apache-2.0
// What top-k decides before it sees a gradient: how much to sample, which ranks of the sample
// enclose the k-th largest element, and how many candidates that can give; and what it remembers.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/philox.hpp"
#include "kernels/cpu/select_pass.simd.hpp"

namespace gradsieve::kernels::cpu {

struct TopkPlan {
  std::uint64_t num_blocks = 0;      ///< of kPassElements
  std::uint64_t num_partitions = 0;  ///< of the exact search, which counts without a sample
  std::uint64_t num_samples = 0;     ///< 0: do without
  // Ranks within the sample, 1 for its largest; 0 stands for above all, num_samples + 1 for below.
  std::uint64_t rank_high = 0;
  std::uint64_t rank_middle = 0;
  std::uint64_t rank_low = 0;
  std::uint64_t capacity = 0;  ///< of the candidates
};

/// Below this the exact search is as fast.
inline constexpr std::uint64_t kSampledFromElements = 2 * kPassElements;

[[nodiscard]] inline TopkPlan plan_topk(std::uint64_t num_elements, std::uint64_t k) noexcept {
  TopkPlan plan;
  plan.num_blocks = (num_elements + kPassElements - 1) / kPassElements;
  plan.num_partitions = std::clamp<std::uint64_t>(num_elements >> 16, 1, 16);
  if (num_elements < kSampledFromElements || k == 0 || k == num_elements) return plan;

  plan.num_samples = std::clamp<std::uint64_t>(std::bit_floor(num_elements >> 9), 512, 8192);
  double const samples = static_cast<double>(plan.num_samples);
  double const per_sample = static_cast<double>(num_elements) / samples;
  double const density = static_cast<double>(k) / static_cast<double>(num_elements);
  // Of the k largest, so many are in the sample, give or take four standard deviations (and a
  // little, because the distribution is skewed when they are few).
  double const expected = samples * density;
  double const margin = 4 * std::sqrt(expected * (1 - density)) + 3;
  plan.rank_high = static_cast<std::uint64_t>(std::max(0.0, expected - margin));
  plan.rank_middle = static_cast<std::uint64_t>(expected + 0.5);
  plan.rank_low = std::min(static_cast<std::uint64_t>(expected + margin) + 1, plan.num_samples + 1);
  double const rank = static_cast<double>(plan.rank_low);
  double const most = per_sample * (rank + 5 * std::sqrt(rank) + 4) + kPassElements;
  plan.capacity = std::min(num_elements, static_cast<std::uint64_t>(most));
  return plan;
}

/// Element j of the sample, one in each of num_samples equal strata. Positions have to be
/// independent of any pattern in the gradient, so they are hashed; they are the same in every call.
[[nodiscard]] inline std::uint32_t sample_position(std::uint64_t j, std::uint64_t num_elements,
                                                   std::uint64_t num_samples) noexcept {
  std::uint64_t const start = j * num_elements / num_samples;
  std::uint64_t const size = (j + 1) * num_elements / num_samples - start;
  return static_cast<std::uint32_t>(start + ((mix64(j) >> 32) * size >> 32));
}

/// The elements with a magnitude above this one, or equal to it and an index up to `last_index`.
/// Rounded up to whole blocks, so that it is one threshold per block.
struct TopkBorder {
  std::uint32_t magnitude = 0;
  std::uint64_t last_index = 0;

  [[nodiscard]] std::uint32_t threshold(std::uint64_t first_index) const noexcept {
    return magnitude + (first_index > last_index ? 1 : 0);
  }
};

/// What top-k remembers of each kPassElements elements.
struct TopkBlock {
  std::uint64_t first = 0;      ///< of its candidates
  std::uint64_t place = 0;      ///< of its chosen ones in the selection
  std::uint32_t count = 0;      ///< of its candidates
  std::uint32_t num_above = 0;  ///< surely chosen, or above the cut
  std::uint32_t num_ties = 0;   ///< equal to the cut
  std::uint32_t num_taken = 0;  ///< of the ties, the first ones
};

}  // namespace gradsieve::kernels::cpu
