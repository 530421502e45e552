// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "kernels/cpu/block_topk.simd.hpp"
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

/// Norms of blocks whose c is at hand.
class BlockMeasure {
 public:
  BlockMeasure(Blocks blocks, BlockNorm norm) noexcept : blocks_(blocks), norm_(norm) {}

  /// Blocks that are worth measuring together: their c is still in the first-level cache.
  [[nodiscard]] std::uint64_t blocks_at_once() const noexcept {
    return std::max<std::uint64_t>(1, kSumBlockElements / blocks_.block_elements);
  }
  /// norms ← those of the blocks from `first` on, whose elements are `c`.
  void measure(std::span<float const> c, std::uint64_t first,
               std::span<double> norms) const noexcept {
    if (norm_ == BlockNorm::l2 && blocks_.block_elements <= kSumBlockElements) {
      sum_blocks_(c.data(), c.size(), blocks_.block_elements, norms.data());
      return;
    }
    for (double& norm : norms) {
      auto const block = c.first(blocks_.size(first++));
      norm = norm_ == BlockNorm::l2 ? long_sum(block) : largest(block);
      c = c.subspan(block.size());
    }
  }

 private:
  [[nodiscard]] double long_sum(std::span<float const> block) const noexcept {
    double sum = 0;
    while (!block.empty()) {
      auto const part = block.first(std::min<std::size_t>(kSumBlockElements, block.size()));
      double part_sum = 0;
      sum_blocks_(part.data(), part.size(), kSumBlockElements, &part_sum);
      sum += part_sum;
      block = block.subspan(part.size());
    }
    return sum;
  }
  [[nodiscard]] double largest(std::span<float const> block) const noexcept {
    return double{std::bit_cast<float>(largest_(block.data(), block.size()))};
  }

  Blocks blocks_;
  BlockNorm norm_;
  decltype(&portable::sum_squares_blocks) sum_blocks_ = GRADSIEVE_PICK(sum_squares_blocks);
  decltype(&portable::largest_magnitude) largest_ = GRADSIEVE_PICK(largest_magnitude);
};

// residual.out ← c, and the norms of the blocks [first, first + norms.size()). Returns nonzero if a
// sum was not finite.
std::uint32_t measure_blocks(ConstTensorView gradient, ResidualView residual, Blocks blocks,
                             BlockNorm norm, std::uint64_t first,
                             std::span<double> norms) noexcept {
  auto* const compensate_part = GRADSIEVE_PICK(compensate_chunk);
  BlockMeasure const measure(blocks, norm);
  std::uint32_t non_finite = 0;
  if (norm == BlockNorm::l2 && blocks.block_elements % 32 == 0 &&
      blocks.block_elements <= kSumBlockElements) {
    std::uint64_t const begin = blocks.begin(first);
    std::uint64_t const num_whole = std::min<std::uint64_t>(
        norms.size(), (blocks.num_elements - begin) / blocks.block_elements);
    auto* const square_blocks = GRADSIEVE_PICK(compensate_square_blocks);
    non_finite = square_blocks(
        gradient.slice(begin, num_whole * blocks.block_elements).data, element_type(gradient.dtype),
        residual.in.empty() ? nullptr : residual.in.data() + begin, residual.carry, num_whole,
        blocks.block_elements, residual.out.data() + begin, norms.data());
    first += num_whole;
    norms = norms.subspan(num_whole);
  }
  while (!norms.empty()) {
    auto const part = norms.first(std::min<std::size_t>(measure.blocks_at_once(), norms.size()));
    std::uint64_t const begin = blocks.begin(first);
    std::uint64_t const last = first + part.size() - 1;
    auto const c = residual.out.subspan(begin, blocks.begin(last) + blocks.size(last) - begin);
    non_finite |=
        compensate_part(gradient.slice(begin, c.size()).data, element_type(gradient.dtype),
                        residual.in.empty() ? nullptr : residual.in.data() + begin, residual.carry,
                        c.size(), c.data());
    measure.measure(c, first, part);
    first = last + 1;
    norms = norms.subspan(part.size());
  }
  return non_finite;
}

Flags compensate_and_measure(ExecContext const& ctx, ConstTensorView gradient,
                             ResidualView residual, Blocks blocks, BlockNorm norm,
                             std::span<double> norms) noexcept {
  std::atomic<std::uint32_t> non_finite = 0;
  for_chunks(ctx, norms.size(), blocks.grain(), [&](std::uint64_t first, std::uint64_t last) {
    auto const own = norms.subspan(first, last - first);
    if (measure_blocks(gradient, residual, blocks, norm, first, own) != 0) {
      non_finite.store(1, std::memory_order_relaxed);
    }
  });
  return non_finite.load(std::memory_order_relaxed) != 0 ? kStepNonFinite : 0;
}

// The bits of doubles that are not negative have the order of the numbers.
std::uint64_t key_of(double norm) noexcept { return std::bit_cast<std::uint64_t>(norm); }

void choose(std::span<double const> norms, std::span<std::uint64_t> scratch,
            std::span<std::uint32_t> indices) noexcept {
  std::ranges::transform(norms, scratch.begin(), key_of);
  auto const [least, greatest] = std::minmax_element(scratch.begin(), scratch.end());
  auto cut = radix_select(scratch, *least, *greatest, indices.size());
  std::size_t num_chosen = 0;
  for (std::size_t b = 0; b < norms.size(); ++b) {
    std::uint64_t const key = key_of(norms[b]);
    bool const is_tie = key == cut.key && cut.num_ties != 0;
    cut.num_ties -= is_tie ? 1 : 0;
    if (is_tie || key > cut.key) indices[num_chosen++] = static_cast<std::uint32_t>(b);
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
  auto const norms = ctx.workspace->take<double>(blocks.count());
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
