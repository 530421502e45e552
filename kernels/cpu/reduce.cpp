// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cpu/reduce.simd.hpp"
#include "kernels/cpu/simd_dispatch.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cpu {

void scale(ExecContext const& ctx, StepValue<float> factor, std::span<float> values) noexcept {
  auto* const chunk = GRADSIEVE_PICK(scale_chunk);
  for_chunks(ctx, values.size(), kGrainElements, [&](std::uint64_t begin, std::uint64_t end) {
    chunk(factor, end - begin, values.data() + begin);
  });
}

void sum_squares(ExecContext const& ctx, std::span<float const> values, double* result) noexcept {
  auto* const sum_blocks = GRADSIEVE_PICK(sum_squares_blocks);
  // The block sums have to be added in order, so they are kept, a stretch of blocks at a time.
  constexpr std::uint64_t kStretchBlocks = 512;
  double block_sums[kStretchBlocks];
  double sum = 0;
  std::uint64_t const num_blocks = (values.size() + kSumBlockElements - 1) / kSumBlockElements;
  for (std::uint64_t first = 0; first < num_blocks; first += kStretchBlocks) {
    std::uint64_t const count = std::min(kStretchBlocks, num_blocks - first);
    for_chunks(ctx, count, 8, [&](std::uint64_t begin, std::uint64_t end) {
      std::uint64_t const start = (first + begin) * kSumBlockElements;
      std::uint64_t const stop =
          std::min<std::uint64_t>((first + end) * kSumBlockElements, values.size());
      sum_blocks(values.data() + start, stop - start, kSumBlockElements, block_sums + begin);
    });
    for (std::uint64_t b = 0; b < count; ++b) sum += block_sums[b];
  }
  *result = sum;
}

}  // namespace gradsieve::kernels::cpu

namespace gradsieve::kernels {

std::size_t sum_squares_workspace_bytes(std::uint64_t num_elements) noexcept {
  return Workspace::padded((num_elements + cpu::kSumBlockElements - 1) / cpu::kSumBlockElements *
                           sizeof(double));
}

}  // namespace gradsieve::kernels
