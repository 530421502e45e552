// SPDX-License-Identifier: Apache-2.0
// Indexed reads and writes: bound by memory latency, not by arithmetic, so plain loops with a
// prefetch serve every instruction set.
#include <algorithm>
#include <atomic>

#include "kernels/cpu/compensate_chunks.hpp"
#include "kernels/cpu/simd_dispatch.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cpu {
namespace {

constexpr std::uint64_t kGrainIndices = 4096;
constexpr std::uint64_t kPrefetchDistance = 24;

// The indices ascend, so the elements of two chunks are disjoint and any thread may take either.
// each(element, position) for the chosen elements, position being where the value stands.
template <typename Each>
void for_selected(ExecContext const& ctx, std::span<std::uint32_t const> indices,
                  std::uint64_t granularity, std::span<float> x, Each const& each) noexcept {
  std::uint64_t const grain = std::max<std::uint64_t>(1, kGrainIndices / granularity);
  for_chunks(ctx, indices.size(), grain, [&](std::uint64_t begin, std::uint64_t end) {
    if (granularity == 1) {
      for (std::uint64_t j = begin; j < end; ++j) {
        std::uint64_t const ahead = std::min(j + kPrefetchDistance, end - 1);
        __builtin_prefetch(&x[indices[ahead]], 1);
        each(indices[j], j);
      }
      return;
    }
    for (std::uint64_t j = begin; j < end; ++j) {
      std::uint64_t const first = indices[j] * granularity;
      std::uint64_t const count = std::min<std::uint64_t>(granularity, x.size() - first);
      // Only the last block can be short, and it is the last of the selection.
      for (std::uint64_t i = 0; i < count; ++i) each(first + i, j * granularity + i);
    }
  });
}

float canonical(float x) noexcept { return x == x ? x : std::bit_cast<float>(0x7fc00000U); }

}  // namespace

void take(ExecContext const& ctx, IndexSpan indices, std::uint64_t granularity, std::span<float> x,
          std::span<float> values) noexcept {
  for_selected(ctx, indices.valid(), granularity, x, [=](std::uint64_t i, std::uint64_t position) {
    values[position] = x[i];
    x[i] = 0.0F;
  });
}

// The elements are still in the cache when they are taken.
Flags compensate_take(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                      IndexSpan index_set, std::uint64_t granularity,
                      std::span<float> values) noexcept {
  if (granularity != 1) {
    Flags const flags = cpu::compensate(ctx, gradient, residual);
    cpu::take(ctx, index_set, granularity, residual.out, values);
    return flags;
  }
  auto const indices = index_set.valid();
  auto const position_of = [&](std::uint64_t element) {
    return static_cast<std::uint64_t>(std::ranges::lower_bound(indices, element) - indices.begin());
  };
  return compensate_chunks(ctx, gradient, residual, [&](std::uint64_t begin, std::uint64_t end) {
    std::uint64_t const last = position_of(end);
    for (std::uint64_t j = position_of(begin); j < last; ++j) {
      values[j] = residual.out[indices[j]];
      residual.out[indices[j]] = 0.0F;
    }
  });
}

void scatter_add(ExecContext const& ctx, IndexSpan indices, std::uint64_t granularity,
                 std::span<float const> values, float weight,
                 std::span<float> accumulator) noexcept {
  for_selected(ctx, indices.valid(), granularity, accumulator,
               [=](std::uint64_t i, std::uint64_t position) {
                 float const product = weight * values[position];
                 accumulator[i] = canonical(accumulator[i] + product);
               });
}

bool check_indices(ExecContext const& ctx, IndexSpan index_set, std::uint64_t universe) noexcept {
  auto const indices = index_set.valid();
  if (indices.empty()) return true;
  if (indices.back() >= universe) return false;
  std::atomic<bool> ascends = true;
  for_chunks(ctx, indices.size() - 1, kGrainElements, [&](std::uint64_t begin, std::uint64_t end) {
    std::uint32_t num_wrong = 0;
    for (std::uint64_t j = begin; j < end; ++j) num_wrong += indices[j] >= indices[j + 1] ? 1U : 0U;
    if (num_wrong != 0) ascends.store(false, std::memory_order_relaxed);
  });
  return ascends.load(std::memory_order_relaxed);
}

}  // namespace gradsieve::kernels::cpu
