// SPDX-License-Identifier: Apache-2.0
#include "kernels/many_ops.hpp"

namespace gradsieve::kernels {

std::vector<std::uint32_t> plan_runs(std::span<Segment> segments, std::uint64_t block_elements) {
  std::uint64_t const of_run = run_elements(block_elements);
  std::vector<std::uint32_t> segment_of_run;
  for (Segment& segment : segments) {
    segment.first_run = segment_of_run.size();
    std::uint64_t const n = segment.num_elements;
    segment_of_run.insert(segment_of_run.end(),
                          static_cast<std::size_t>(n / of_run + (n % of_run != 0 ? 1 : 0)),
                          static_cast<std::uint32_t>(&segment - segments.data()));
  }
  return segment_of_run;
}

}  // namespace gradsieve::kernels
