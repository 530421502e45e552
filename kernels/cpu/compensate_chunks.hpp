// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "kernels/cpu/element_type.hpp"
#include "kernels/cpu/feedback.simd.hpp"
#include "kernels/cpu/simd_dispatch.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cpu {

/// CompensateFn; then(begin, end) follows for each chunk while it is in the cache.
template <typename Then>
Flags compensate_chunks(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                        Then const& then) noexcept {
  auto* const chunk = GRADSIEVE_PICK(compensate_chunk);
  std::atomic<std::uint32_t> non_finite = 0;
  for_chunks(ctx, gradient.num_elements, kGrainElements,
             [&](std::uint64_t begin, std::uint64_t end) {
               std::uint32_t const found =
                   chunk(gradient.slice(begin, end - begin).data, element_type(gradient.dtype),
                         residual.in.empty() ? nullptr : residual.in.data() + begin, residual.carry,
                         end - begin, residual.out.data() + begin);
               if (found != 0) non_finite.store(1, std::memory_order_relaxed);
               then(begin, end);
             });
  return non_finite.load(std::memory_order_relaxed) != 0 ? kStepNonFinite : 0;
}

}  // namespace gradsieve::kernels::cpu
