// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cpu/compensate_chunks.hpp"
#include "kernels/cpu/feedback.simd.hpp"
#include "kernels/cpu/simd_dispatch.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cpu {

Flags compensate(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual) noexcept {
  return compensate_chunks(ctx, gradient, residual, [](std::uint64_t, std::uint64_t) {});
}

void retain(ExecContext const& ctx, std::span<float const> decoded,
            std::span<float> residual) noexcept {
  auto* const chunk = GRADSIEVE_PICK(retain_chunk);
  for_chunks(ctx, residual.size(), kGrainElements, [&](std::uint64_t begin, std::uint64_t end) {
    chunk(decoded.data() + begin, end - begin, residual.data() + begin);
  });
}

void store_bf16(ExecContext const& ctx, std::span<float const> values, RoundingKey const& key,
                std::span<BFloat16> out) noexcept {
  auto* const store = GRADSIEVE_PICK(store_bf16_chunk);
  auto* const draw = GRADSIEVE_PICK(random_rows);
  constexpr std::uint64_t kRowElements = 1024;
  for_chunks(ctx, values.size(), kGrainElements, [&](std::uint64_t begin, std::uint64_t end) {
    std::uint16_t random[kRowElements + 8 + kRandomSlack];
    for (std::uint64_t row = begin; row < end; row += kRowElements) {
      std::uint64_t const count = std::min(kRowElements, end - row);
      std::uint64_t const first = key.first_element + row;
      std::uint64_t const skip = first % 8;
      draw(key.key.low, key.key.high, key.step, first / 8, (skip + count + 7) / 8, random);
      store(values.data() + row, random + skip, count,
            reinterpret_cast<std::uint16_t*>(out.data() + row));
    }
  });
}

}  // namespace gradsieve::kernels::cpu
