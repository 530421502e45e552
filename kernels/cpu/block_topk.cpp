// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "kernels/cpu/element_type.hpp"
#include "kernels/cpu/feedback.simd.hpp"
#include "kernels/cpu/radix_select.hpp"
#include "kernels/cpu/reduce.simd.hpp"
#include "kernels/cpu/simd_dispatch.hpp"
#include "kernels/ops.hpp"
#include "kernels/workspace_bytes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

struct Blocks {
  std::uint64_t num_elements;
  std::uint64_t block_elements;

  [[nodiscard]] std::uint64_t count() const noexcept {
    return num_elements / block_elements + (num_elements % block_elements != 0 ? 1 : 0);
  }
  [[nodiscard]] std::uint64_t begin(std::uint64_t block) const noexcept {
    return block * block_elements;
  }
  [[nodiscard]] std::uint64_t size(std::uint64_t block) const noexcept {
    return std::min(block_elements, num_elements - begin(block));
  }
  /// Blocks that together are worth handing to a thread.
  [[nodiscard]] std::uint64_t grain() const noexcept {
    return std::max<std::uint64_t>(1, kGrainElements / block_elements);
  }
};

// residual.out ← c, and the norm of each block, as the bits of a double: those of numbers that are
// not negative have the order of the numbers.
Flags compensate_and_measure(ExecContext const& ctx, ConstTensorView gradient,
                             ResidualView residual, Blocks blocks, BlockNorm norm,
                             std::span<std::uint64_t> norms) noexcept {
  auto* const compensate_part = GRADSIEVE_PICK(compensate_chunk);
  auto* const sum_part = GRADSIEVE_PICK(sum_squares_block);
  auto* const largest_part = GRADSIEVE_PICK(largest_magnitude);
  std::atomic<std::uint32_t> non_finite = 0;
  for_chunks(ctx, norms.size(), blocks.grain(), [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t b = first; b < last; ++b) {
      double sum = 0;
      std::uint32_t largest = 0;
      std::uint64_t const end = blocks.begin(b) + blocks.size(b);
      for (std::uint64_t i = blocks.begin(b); i < end; i += kSumBlockElements) {
        std::uint64_t const count = std::min<std::uint64_t>(kSumBlockElements, end - i);
        float* const c = residual.out.data() + i;
        std::uint32_t const found = compensate_part(
            gradient.slice(i, count).data, element_type(gradient.dtype),
            residual.in.empty() ? nullptr : residual.in.data() + i, residual.carry, count, c);
        if (found != 0) non_finite.store(1, std::memory_order_relaxed);
        if (norm == BlockNorm::l2) {
          sum += sum_part(c, count);
        } else {
          largest = std::max(largest, largest_part(c, count));
        }
      }
      norms[b] = std::bit_cast<std::uint64_t>(
          norm == BlockNorm::l2 ? sum : double{std::bit_cast<float>(largest)});
    }
  });
  return non_finite.load(std::memory_order_relaxed) != 0 ? kStepNonFinite : 0;
}

void choose(std::span<std::uint64_t const> norms, std::span<std::uint64_t> scratch,
            std::span<std::uint32_t> indices) noexcept {
  std::copy(norms.begin(), norms.end(), scratch.begin());
  auto const [least, greatest] = std::minmax_element(norms.begin(), norms.end());
  auto cut = radix_select(scratch, *least, *greatest, indices.size());
  std::size_t num_chosen = 0;
  for (std::size_t b = 0; b < norms.size(); ++b) {
    bool const is_tie = norms[b] == cut.key && cut.num_ties != 0;
    cut.num_ties -= is_tie ? 1 : 0;
    if (is_tie || norms[b] > cut.key) indices[num_chosen++] = static_cast<std::uint32_t>(b);
  }
}

void take_blocks(ExecContext const& ctx, Blocks blocks, std::span<std::uint32_t const> indices,
                 std::span<float> x, std::span<float> values) noexcept {
  for_chunks(ctx, indices.size(), blocks.grain(), [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t j = first; j < last; ++j) {
      float* const block = x.data() + blocks.begin(indices[j]);
      std::size_t const num_bytes = blocks.size(indices[j]) * sizeof(float);
      std::memcpy(values.data() + blocks.begin(j), block, num_bytes);
      std::memset(block, 0, num_bytes);
    }
  });
}

}  // namespace

// As for topk: without the workspace that was to be planned, nothing is chosen.
Flags block_topk(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                 std::uint64_t block_elements, BlockNorm norm, StepValue<std::uint64_t> num_chosen,
                 SparseView& selection) noexcept {
  std::uint64_t const k = num_chosen;
  Blocks const blocks = {gradient.num_elements, block_elements};
  selection.num_indices = 0;
  selection.num_values = 0;
  selection.granularity = block_elements;
  selection.num_overflowed = 0;
  if (k == 0 || ctx.workspace == nullptr) return compensate(ctx, gradient, residual);
  WorkspaceScope const scope(*ctx.workspace);
  auto const norms = ctx.workspace->take<std::uint64_t>(blocks.count());
  auto const scratch = ctx.workspace->take<std::uint64_t>(blocks.count());
  if (norms.empty() || scratch.empty()) return compensate(ctx, gradient, residual);

  Flags const flags = compensate_and_measure(ctx, gradient, residual, blocks, norm, norms);
  auto const indices = selection.indices.first(k);
  choose(norms, scratch, indices);
  take_blocks(ctx, blocks, indices, residual.out, selection.values);
  selection.num_indices = k;
  selection.num_values = blocks.begin(k - 1) + blocks.size(indices.back());
  return flags;
}

std::size_t block_topk_bytes(std::uint64_t num_elements, std::uint64_t block_elements,
                             std::uint64_t) noexcept {
  std::uint64_t const num_blocks = (num_elements + block_elements - 1) / block_elements;
  return 2 * Workspace::padded(num_blocks * sizeof(std::uint64_t));
}

}  // namespace gradsieve::kernels::cpu
