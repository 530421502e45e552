// SPDX-License-Identifier: Apache-2.0
// The kernels of many_sparse_ops.hpp as a loop over the segments, on a backend whose calls are
// cheap.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/index_forms.hpp"
#include "kernels/many_sparse_ops.hpp"

namespace gradsieve::kernels {

/// Kernels of one backend.
struct SparseSegmentKernels {
  CompensateFn& compensate;
  TopkFn& topk;
  ThresholdFn& threshold;
  BlockTopkFn& block_topk;
  RandomkFn& randomk;
  TakeFn& take;
  BitmapEncodeFn& bitmap_encode;
  EliasFanoEncodeFn& elias_fano_encode;
  BitmapDecodeFn& bitmap_decode;
  EliasFanoDecodeFn& elias_fano_decode;
  CheckClearFn& check_clear;
  CountSelectionFn& count_selection;
  ScatterAddFn& scatter_add;
};

inline bool is_form(SparseSegment const& segment, IndexForm form) noexcept {
  return segment.index_form() == static_cast<std::uint32_t>(form);
}

inline Flags choose_from(SparseSegmentKernels const& run, ExecContext const& ctx,
                         SparseSegment const& segment, HeldRule rule, ConstTensorView gradient,
                         ResidualView residual, SparseView& view) noexcept {
  std::uint64_t const word = ctx.piece_word[segment.word];
  std::uint64_t const k = std::min(word, segment.num_units());
  switch (rule) {
    case HeldRule::topk:
      return run.topk(ctx, gradient, residual, k, view);
    case HeldRule::threshold:
      return run.threshold(ctx, gradient, residual,
                           std::bit_cast<float>(static_cast<std::uint32_t>(word)), view);
    case HeldRule::block_l2:
    case HeldRule::block_linf:
      return run.block_topk(ctx, gradient, residual, segment.granularity,
                            rule == HeldRule::block_l2 ? BlockNorm::l2 : BlockNorm::linf, k, view);
    case HeldRule::randomk:
      break;
  }
  Flags const flags = run.compensate(ctx, gradient, residual);
  run.randomk(ctx, segment.key, word, segment.num_elements, view.indices);
  run.take(ctx, view.indices, 1, residual.out, view.values);
  view.num_indices = view.num_values = segment.capacity();
  return flags;
}

inline Flags select_each(SparseSegmentKernels const& run, ExecContext const& ctx,
                         std::span<SparseSegment const> segments, HeldRule rule,
                         EncodedArrays const& arrays, ChosenArrays const& chosen) noexcept {
  Flags flags = 0;
  for (SparseSegment const& segment : segments) {
    auto const count = static_cast<std::size_t>(segment.num_elements);
    // ResidualView has one type for what is read and what is written.
    auto* const in = const_cast<float*>(arrays.residual_in);
    ResidualView residual{{}, {arrays.residual_out + segment.in_residual, count}, arrays.carry};
    if (in != nullptr) residual.in = {in + segment.in_residual, count};
    SparseView view;
    view.indices = {chosen.indices + segment.in_indices,
                    static_cast<std::size_t>(segment.capacity())};
    view.values = {chosen.values + segment.in_values, static_cast<std::size_t>(segment.num_values)};
    flags |= choose_from(run, ctx, segment, rule,
                         arrays.gradient.slice(segment.in_gradient, segment.num_elements), residual,
                         view);
    run.count_selection(ctx, view, segment.num_units());
    for (std::uint64_t j = view.num_indices; j < view.indices.size(); ++j)
      view.indices[j] = static_cast<std::uint32_t>(segment.num_units() + (j - view.num_indices));
    for (std::uint64_t j = view.num_values; j < view.values.size(); ++j) view.values[j] = 0.0F;
    std::memcpy(arrays.bodies + segment.body_begin, segment.header.data(), segment.header_bytes);
    if (is_form(segment, IndexForm::shared)) continue;
    auto& encode = is_form(segment, IndexForm::bitmap) ? run.bitmap_encode : run.elias_fano_encode;
    encode(ctx, view.indices, segment.universe,
           {arrays.bodies + segment.index_begin, static_cast<std::size_t>(segment.index_bytes())});
  }
  return flags;
}

/// Adds to what the indices of a segment stand for: those that fill up its room come last.
inline void add_at(SparseSegmentKernels const& run, ExecContext const& ctx,
                   SparseSegment const& segment, std::span<std::uint32_t const> indices,
                   float const* values, float weight, float* sums) noexcept {
  auto const end = std::ranges::lower_bound(indices, segment.num_units());
  run.scatter_add(ctx, indices.first(static_cast<std::size_t>(end - indices.begin())),
                  segment.granularity, {values, static_cast<std::size_t>(segment.num_values)},
                  weight, {sums, static_cast<std::size_t>(segment.num_elements)});
}

inline void put_back_each(SparseSegmentKernels const& run, ExecContext const& ctx,
                          std::span<SparseSegment const> segments, std::uint32_t const* indices,
                          float const* lost, float* residual) noexcept {
  for (SparseSegment const& segment : segments) {
    add_at(run, ctx, segment,
           {indices + segment.in_indices, static_cast<std::size_t>(segment.capacity())},
           lost + segment.in_values, 1.0F, residual + segment.in_residual);
  }
}

/// False if a body is not laid out as planned.
inline bool read_segment(SparseSegmentKernels const& run, ExecContext const& ctx,
                         SparseSegment const& segment, std::byte const* bodies,
                         std::span<std::uint32_t> indices) noexcept {
  std::byte const* const code = bodies + segment.index_begin;
  if (std::memcmp(bodies + segment.body_begin, segment.header.data(), segment.header_bytes) != 0 ||
      !run.check_clear(ctx, {bodies + segment.values_end, code}, {}, 0)) {
    return false;
  }
  if (is_form(segment, IndexForm::shared)) {
    run.randomk(ctx, segment.key, ctx.piece_word[segment.word], segment.num_elements, indices);
    return true;
  }
  auto& decode = is_form(segment, IndexForm::bitmap) ? run.bitmap_decode : run.elias_fano_decode;
  return decode(ctx, {code, static_cast<std::size_t>(segment.index_bytes())}, segment.universe,
                indices);
}

inline bool sparse_add_each(SparseSegmentKernels const& run, ExecContext const& ctx,
                            std::span<SparseSegment const> segments, DecodedArrays const& arrays,
                            float const* values) noexcept {
  for (SparseSegment const& segment : segments) {
    WorkspaceScope const scope(*ctx.workspace);
    auto const capacity = static_cast<std::size_t>(segment.capacity());
    std::span<std::uint32_t> const indices = ctx.workspace->take<std::uint32_t>(capacity);
    if (indices.size() != capacity) return false;
    if (!read_segment(run, ctx, segment, arrays.bodies, indices)) return false;
    std::uint64_t const begin = arrays.lies_as_residual ? segment.in_residual : segment.in_gradient;
    add_at(run, ctx, segment, indices, values + segment.in_values, arrays.weight,
           arrays.accumulator + begin);
  }
  return true;
}

}  // namespace gradsieve::kernels
