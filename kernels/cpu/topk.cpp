// SPDX-License-Identifier: Apache-2.0
// Exact top-k in one pass over the gradient. A small sample gives three borders, which enclose the
// k-th largest magnitude: the pass writes c, with zeros from the middle border on, and collects the
// elements above the low one. The cut is then found among the few between low and high, and what
// the pass zeroed wrongly is put right. If the sample misled, the same is done by counting.
//
// Elements are ordered by magnitude and then by index, so ties (even a gradient of zeros) have a
// border as well. The result is defined by that order alone; which thread did what leaves no trace.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/cpu/element_type.hpp"
#include "kernels/cpu/radix_select.hpp"
#include "kernels/cpu/select_pass.simd.hpp"
#include "kernels/cpu/simd_dispatch.hpp"
#include "kernels/cpu/topk_plan.hpp"
#include "kernels/ops.hpp"
#include "kernels/workspace_bytes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

/// Candidates of one block, before they go where they belong.
struct Local {
  std::uint32_t indices[kPassElements + kSelectSlack];
  float values[kPassElements + kSelectSlack];
};

/// Where pairs are written: to a Local, or at once to their place.
struct Pairs {
  std::uint32_t* indices;
  float* values;
};

class Topk {
 public:
  Topk(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual, std::uint64_t k,
       SparseView& selection) noexcept
      : ctx_(ctx),
        gradient_(gradient),
        residual_(residual),
        selection_(selection),
        k_(k),
        plan_(plan_topk(gradient.num_elements, k)) {}

  [[nodiscard]] bool take_workspace(Workspace& workspace) noexcept {
    blocks_ = workspace.take<TopkBlock>(plan_.num_blocks);
    counts_ = workspace.take<std::uint32_t>(plan_.num_partitions * kNumBuckets);
    bool const has_blocks = blocks_.size() == plan_.num_blocks && !counts_.empty();
    if (plan_.num_samples == 0) return has_blocks;
    sample_ = workspace.take<std::uint64_t>(plan_.num_samples);
    indices_ = workspace.take<std::uint32_t>(plan_.capacity + kSelectSlack);
    values_ = workspace.take<float>(plan_.capacity + kSelectSlack);
    undecided_ = workspace.take<std::uint32_t>(plan_.capacity);
    return has_blocks && !sample_.empty() && !indices_.empty() && !values_.empty() &&
           !undecided_.empty();
  }

  Flags run() noexcept {
    if (plan_.num_samples != 0) {
      draw_sample();
      place_borders();
      collect();
      if (borders_hold()) {
        cut_candidates();
        choose_candidates();
        return flags();
      }
      restore_candidates();
    } else {
      collect();
    }
    cut_by_counting();
    choose_by_counting();
    return flags();
  }

 private:
  [[nodiscard]] Flags flags() const noexcept {
    return non_finite_.load(std::memory_order_relaxed) != 0 ? kStepNonFinite : 0;
  }

  // --- the sample --------------------------------------------------------------------------------

  void draw_sample() noexcept {
    auto* const magnitudes_at = GRADSIEVE_PICK(sample_magnitudes);
    constexpr std::uint64_t kRow = 256;
    for_chunks(ctx_, plan_.num_samples, kRow, [&](std::uint64_t begin, std::uint64_t end) {
      std::uint32_t positions[kRow] = {};
      std::uint32_t magnitudes[kRow];
      for (std::uint64_t j = begin; j < end; ++j) {
        positions[j - begin] = sample_position(j, gradient_.num_elements, plan_.num_samples);
      }
      magnitudes_at(gradient_.data, element_type(gradient_.dtype), residual_in(0), residual_.carry,
                    positions, static_cast<std::uint32_t>(end - begin), magnitudes);
      for (std::uint64_t j = begin; j < end; ++j) {
        sample_[j] = (std::uint64_t{magnitudes[j - begin]} << 32) | ~positions[j - begin];
      }
    });
  }

  void place_borders() noexcept {
    low_ = border_at(plan_.rank_low, sample_.size());
    middle_ = border_at(plan_.rank_middle, std::min<std::uint64_t>(plan_.rank_low, sample_.size()));
    high_ = border_at(plan_.rank_high, std::max<std::uint64_t>(plan_.rank_middle, 1));
  }

  // The first `num_sorted` of the sample hold its largest: each call narrows that down.
  [[nodiscard]] TopkBorder border_at(std::uint64_t rank, std::uint64_t num_sorted) noexcept {
    if (rank == 0) return {kAboveAll, ~std::uint64_t{0}};
    if (rank > sample_.size()) return {0, ~std::uint64_t{0}};
    auto const at = sample_.begin() + static_cast<std::ptrdiff_t>(rank - 1);
    std::nth_element(sample_.begin(), at, sample_.begin() + static_cast<std::ptrdiff_t>(num_sorted),
                     std::greater<>());
    return {static_cast<std::uint32_t>(*at >> 32), ~static_cast<std::uint32_t>(*at)};
  }

  // --- the pass ----------------------------------------------------------------------------------

  void collect() noexcept {
    for_blocks([&](std::uint64_t b) { collect_block(b); });
  }

  void collect_block(std::uint64_t b) noexcept {
    Local local;
    // Without a sample, and once the candidates have run out of room, all of c stays in place.
    bool const keeps = plan_.num_samples != 0 && !is_full_.load(std::memory_order_relaxed);
    std::uint64_t const first_index = b * kPassElements;
    SelectPass pass = whole_block(b);
    pass.gradient = gradient_.slice(first_index, pass.count).data;
    pass.keep_from = keeps ? low_.threshold(first_index) : kAboveAll;
    pass.zero_from = keeps ? middle_.threshold(first_index) : kAboveAll;
    std::uint32_t non_finite = 0;
    std::uint64_t const next = num_candidates_.load(std::memory_order_relaxed);
    Pairs const pairs = room_at(local, next, plan_.capacity, indices_, values_);
    std::uint32_t const count = select_(pass, pairs.indices, pairs.values, &non_finite);
    if (non_finite != 0) non_finite_.store(1, std::memory_order_relaxed);
    blocks_[b] = {};
    if (count == 0) return;

    std::uint64_t const first = num_candidates_.fetch_add(count, std::memory_order_relaxed);
    if (first + count > plan_.capacity) {
      is_full_.store(true, std::memory_order_relaxed);
      mend_(pairs.indices, pairs.values, count, 0, kAboveAll, true, residual_.out.data());
      return;
    }
    blocks_[b].first = first;
    blocks_[b].count = count;
    settle(pairs, count, first, indices_, values_);
    std::uint32_t const num_undecided =
        below_(pairs.values, count, high_.threshold(first_index), local.indices);
    std::uint64_t const to = num_undecided_.fetch_add(num_undecided, std::memory_order_relaxed);
    std::memcpy(undecided_.data() + to, local.indices, num_undecided * sizeof(std::uint32_t));
  }

  // --- the usual end -----------------------------------------------------------------------------

  [[nodiscard]] bool borders_hold() const noexcept {
    std::uint64_t const num_candidates = num_candidates_.load(std::memory_order_relaxed);
    std::uint64_t const num_sure = num_candidates - num_undecided_.load(std::memory_order_relaxed);
    return !is_full_.load(std::memory_order_relaxed) && num_candidates >= k_ && num_sure <= k_;
  }

  void cut_candidates() noexcept {
    std::uint64_t const num_undecided = num_undecided_.load(std::memory_order_relaxed);
    std::uint64_t const num_sure = num_candidates_.load(std::memory_order_relaxed) - num_undecided;
    cut_ = {kAboveAll - 1, 0};
    if (num_sure == k_) return;
    cut_ = radix_select(undecided_.first(num_undecided), low_.magnitude,
                        std::min(high_.magnitude, kAboveAll - 1), k_ - num_sure);
  }

  void choose_candidates() noexcept {
    for_blocks([&](std::uint64_t b) {
      TopkBlock& block = blocks_[b];
      float const* const values = values_.data() + block.first;
      // What reaches the high border is chosen even where it equals the cut.
      std::uint32_t const sure = high_.threshold(b * kPassElements);
      block.num_above = count_(values, block.count, std::min(sure, cut_.key + 1));
      block.num_ties = count_(values, block.count, std::min(sure, cut_.key)) - block.num_above;
    });
    assign_places();
    for_blocks([&](std::uint64_t b) {
      if (blocks_[b].count != 0) choose_in_block(b);
    });
  }

  void choose_in_block(std::uint64_t b) noexcept {
    Local local;
    TopkBlock const& block = blocks_[b];
    std::uint32_t const* const indices = indices_.data() + block.first;
    float const* const values = values_.data() + block.first;
    float* const out = residual_.out.data();
    std::uint64_t const first_index = b * kPassElements;
    std::uint32_t const from = std::min(high_.threshold(first_index), least_taken(block));
    Pairs const pairs = room_at(local, block.place, k_, selection_.indices, selection_.values);
    std::uint32_t const count =
        copy_(indices, values, block.count, from, pairs.indices, pairs.values);
    std::uint32_t const zeroed = middle_.threshold(first_index);
    if (splits_ties(block)) {
      mend_(indices, values, block.count, 0, kAboveAll, true, out);
      keep_first_ties(pairs, count, block.num_taken);
    } else if (from < zeroed) {
      mend_(indices, values, block.count, from, zeroed, false, out);
    } else {
      mend_(indices, values, block.count, zeroed, from, true, out);
    }
    settle(pairs, block.num_above + block.num_taken, block.place, selection_.indices,
           selection_.values);
  }

  void restore_candidates() noexcept {
    for_blocks([&](std::uint64_t b) {
      TopkBlock const& block = blocks_[b];
      mend_(indices_.data() + block.first, values_.data() + block.first, block.count, 0, kAboveAll,
            true, residual_.out.data());
    });
  }

  // --- without a sample --------------------------------------------------------------------------

  // residual.out holds all of c. Each round fixes the next bits of the cut.
  void cut_by_counting() noexcept {
    cut_ = {0, k_};
    std::uint32_t high = kAboveAll - 1;
    while (true) {
      int const shift = bucket_shift(cut_.key, high);
      count_partitions(shift);
      // Elements above `high` are counted as well, in the buckets behind its own.
      std::uint32_t const bucket =
          find_bucket(counts_.data(), (high - cut_.key) >> shift, cut_.num_ties);
      cut_.key += bucket << shift;
      if (shift == 0) return;
      high = cut_.key + ((1U << shift) - 1);
    }
  }

  void count_partitions(int shift) noexcept {
    std::uint64_t const n = residual_.out.size();
    std::uint64_t const part = (n + plan_.num_partitions - 1) / plan_.num_partitions;
    std::fill(counts_.begin(), counts_.end(), 0U);
    for_chunks(ctx_, n, part, [&](std::uint64_t begin, std::uint64_t end) {
      histogram_(residual_.out.data() + begin, end - begin, cut_.key, shift,
                 counts_.data() + begin / part * kNumBuckets);
    });
    for (std::size_t i = kNumBuckets; i < counts_.size(); ++i) {
      counts_[i % kNumBuckets] += counts_[i];
    }
  }

  void choose_by_counting() noexcept {
    for_blocks([&](std::uint64_t b) {
      SelectPass const pass = whole_block(b);
      blocks_[b] = {};
      blocks_[b].num_above = count_(pass.residual_out, pass.count, cut_.key + 1);
      blocks_[b].num_ties = count_(pass.residual_out, pass.count, cut_.key) - blocks_[b].num_above;
    });
    assign_places();
    for_blocks([&](std::uint64_t b) {
      Local local;
      std::uint32_t unused = 0;
      SelectPass pass = whole_block(b);
      pass.keep_from = least_taken(blocks_[b]);
      pass.zero_from = splits_ties(blocks_[b]) ? kAboveAll : pass.keep_from;
      TopkBlock const& block = blocks_[b];
      Pairs const pairs = room_at(local, block.place, k_, selection_.indices, selection_.values);
      std::uint32_t const count = select_(pass, pairs.indices, pairs.values, &unused);
      if (splits_ties(block)) keep_first_ties(pairs, count, block.num_taken);
      settle(pairs, block.num_above + block.num_taken, block.place, selection_.indices,
             selection_.values);
    });
  }

  // --- both --------------------------------------------------------------------------------------

  /// body(b) for all blocks, on all threads.
  template <typename Body>
  void for_blocks(Body const& body) const noexcept {
    constexpr std::uint64_t kGrainBlocks = kGrainElements / kPassElements;
    for_chunks(ctx_, plan_.num_blocks, kGrainBlocks, [&](std::uint64_t begin, std::uint64_t end) {
      for (std::uint64_t b = begin; b < end; ++b) body(b);
    });
  }

  [[nodiscard]] float const* residual_in(std::uint64_t first_index) const noexcept {
    return residual_.in.empty() ? nullptr : residual_.in.data() + first_index;
  }

  [[nodiscard]] SelectPass whole_block(std::uint64_t b) const noexcept {
    std::uint64_t const first_index = b * kPassElements;
    std::uint64_t const rest = gradient_.num_elements - first_index;
    SelectPass pass = {};
    pass.residual_in = residual_in(first_index);
    pass.residual_out = residual_.out.data() + first_index;
    pass.carry = residual_.carry;
    pass.type = element_type(gradient_.dtype);
    pass.count = static_cast<std::uint32_t>(std::min<std::uint64_t>(rest, kPassElements));
    pass.first_index = static_cast<std::uint32_t>(first_index);
    pass.streams = streams_;
    return pass;
  }

  void assign_places() noexcept {
    std::uint64_t place = 0;
    std::uint64_t quota = cut_.num_ties;
    for (TopkBlock& block : blocks_) {
      block.place = place;
      block.num_taken = static_cast<std::uint32_t>(std::min<std::uint64_t>(block.num_ties, quota));
      quota -= block.num_taken;
      place += block.num_above + block.num_taken;
    }
  }

  [[nodiscard]] static bool splits_ties(TopkBlock const& block) noexcept {
    return block.num_taken != 0 && block.num_taken != block.num_ties;
  }
  [[nodiscard]] std::uint32_t least_taken(TopkBlock const& block) const noexcept {
    return block.num_taken != 0 ? cut_.key : cut_.key + 1;
  }

  /// Of the pairs equal to the cut only the first ones stay; their places in the residual are
  /// zeroed with those of all that stay.
  void keep_first_ties(Pairs pairs, std::uint32_t count, std::uint32_t num_taken) const noexcept {
    std::uint32_t num_kept = 0;
    for (std::uint32_t j = 0; j < count; ++j) {
      bool const is_tie = (std::bit_cast<std::uint32_t>(pairs.values[j]) & ~kAboveAll) == cut_.key;
      if (is_tie && num_taken == 0) continue;
      num_taken -= is_tie ? 1 : 0;
      residual_.out[pairs.indices[j]] = 0.0F;
      pairs.indices[num_kept] = pairs.indices[j];
      pairs.values[num_kept++] = pairs.values[j];
    }
  }

  // One thread goes through the blocks in order: what it writes behind its pairs, it overwrites.
  [[nodiscard]] Pairs room_at(Local& local, std::uint64_t place, std::uint64_t capacity,
                              std::span<std::uint32_t> indices,
                              std::span<float> values) const noexcept {
    bool const has_room = place + kPassElements + kSelectSlack <= capacity;
    if (has_helpers(ctx_) || !has_room) return {local.indices, local.values};
    return {indices.data() + place, values.data() + place};
  }

  static void settle(Pairs pairs, std::uint64_t count, std::uint64_t place,
                     std::span<std::uint32_t> indices, std::span<float> values) noexcept {
    if (pairs.indices == indices.data() + place) return;
    std::memcpy(indices.data() + place, pairs.indices, count * sizeof(std::uint32_t));
    std::memcpy(values.data() + place, pairs.values, count * sizeof(float));
  }

  ExecContext const& ctx_;
  ConstTensorView gradient_;
  ResidualView residual_;
  SparseView& selection_;
  std::uint64_t k_;
  TopkPlan plan_;

  bool const streams_ =
      streams_residual(residual_in(0), residual_.out.data(), gradient_.num_elements);
  decltype(&portable::select_block) select_ = GRADSIEVE_PICK(select_block);
  decltype(&portable::magnitudes_below) below_ = GRADSIEVE_PICK(magnitudes_below);
  decltype(&portable::copy_from) copy_ = GRADSIEVE_PICK(copy_from);
  decltype(&portable::mend) mend_ = GRADSIEVE_PICK(mend);
  decltype(&portable::count_from) count_ = GRADSIEVE_PICK(count_from);
  decltype(&portable::count_magnitudes) histogram_ = GRADSIEVE_PICK(count_magnitudes);

  std::span<TopkBlock> blocks_;
  std::span<std::uint32_t> counts_;
  std::span<std::uint64_t> sample_;  ///< magnitude · 2^32 + (2^32 − 1 − index)
  std::span<std::uint32_t> indices_;
  std::span<float> values_;
  std::span<std::uint32_t> undecided_;

  TopkBorder low_;
  TopkBorder middle_;
  TopkBorder high_;
  Cut<std::uint32_t> cut_;
  std::atomic<std::uint32_t> non_finite_ = 0;
  std::atomic<bool> is_full_ = false;
  std::atomic<std::uint64_t> num_candidates_ = 0;
  std::atomic<std::uint64_t> num_undecided_ = 0;
};

}  // namespace

// A workspace that is missing or too small is a mistake of planning: nothing is then chosen, which
// loses nothing, and the caller sees that num_indices is not k.
Flags topk(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
           StepValue<std::uint64_t> num_chosen, SparseView& selection) noexcept {
  std::uint64_t const k = num_chosen;
  selection.num_indices = 0;
  selection.num_values = 0;
  selection.granularity = 1;
  selection.num_overflowed = 0;
  if (k == 0 || ctx.workspace == nullptr) return compensate(ctx, gradient, residual);
  WorkspaceScope const scope(*ctx.workspace);
  Topk run(ctx, gradient, residual, k, selection);
  if (!run.take_workspace(*ctx.workspace)) return compensate(ctx, gradient, residual);
  selection.num_indices = k;
  selection.num_values = k;
  return run.run();
}

std::size_t topk_bytes(std::uint64_t num_elements, std::uint64_t k) noexcept {
  TopkPlan const plan = plan_topk(num_elements, k);
  std::size_t const common = Workspace::padded(plan.num_blocks * sizeof(TopkBlock)) +
                             Workspace::padded(plan.num_partitions * kNumBuckets * 4);
  if (plan.num_samples == 0) return common;
  return common + Workspace::padded(plan.num_samples * 8) +
         2 * Workspace::padded((plan.capacity + kSelectSlack) * 4) +
         Workspace::padded(plan.capacity * 4);
}

}  // namespace gradsieve::kernels::cpu
