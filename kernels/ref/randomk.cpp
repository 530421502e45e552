// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops.hpp"

namespace gradsieve::kernels::ref {

void randomk(ExecContext const&, PhiloxKey const& key, StepValue<std::uint64_t> step,
             std::uint64_t num_elements, std::span<std::uint32_t> indices) noexcept {
  std::uint64_t const k = indices.size();
  for (std::uint64_t j = 0; j < k; ++j) {
    std::uint64_t const start = j * num_elements / k;
    std::uint64_t const size = (j + 1) * num_elements / k - start;
    std::uint64_t const bits = philox(key, j / 4, step)[j % 4];
    indices[j] = static_cast<std::uint32_t>(start + (bits * size >> 32));
  }
}

}  // namespace gradsieve::kernels::ref
