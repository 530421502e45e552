// SPDX-License-Identifier: Apache-2.0
// The two views that fused kernels read and write: the residual of error feedback and a sparse
// selection.
#pragma once

#include <cstdint>
#include <span>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve {

/// Error feedback's memory of one piece, as a fused kernel sees it.
///
///   c = g + carry·e   where that is finite, else carry·e;   e' = c − ĉ
///
/// `in` holds e and may be empty (all zeros: no feedback, or the first step). `out` receives e'; it
/// always has num_elements elements and may alias `in` exactly (same start) or not at all. Between
/// the rounds of a compressor `out` holds c.
struct ResidualView {
  std::span<float const> in = {};
  std::span<float> out = {};
  /// decay × (this step's loss scale ÷ the loss scale that `in` was made at)
  StepValue<float> carry = 1.0F;
};

/// What a selection came to, written where its data lives.
struct SparseCounts {
  std::uint64_t num_indices = 0;
  std::uint64_t num_values = 0;
  std::uint64_t num_overflowed = 0;
};

/// A choice of elements: index i stands for the elements [i·granularity, (i+1)·granularity) of a
/// tensor, cut at its end. Indices ascend strictly; values stand in the same order, contiguously.
struct SparseView {
  std::span<std::uint32_t> indices;  ///< capacity on entry; the first num_indices are valid
  std::span<float> values;           ///< capacity on entry; the first num_values are valid
  std::uint64_t num_indices = 0;
  std::uint64_t num_values = 0;
  std::uint64_t granularity = 1;
  std::uint64_t num_overflowed =
      0;  ///< elements that qualified but did not fit: they stay in the residual
  /// Backend cuda, required: device memory that receives the counts. The three counts above are
  /// then upper bounds, the most that this call can give.
  SparseCounts* counts = nullptr;
};

/// Longest piece that one selection covers: indices are 32-bit within a piece. Longer tensors are
/// cut into pieces at plan time.
inline constexpr std::uint64_t kMaxPieceElements = (std::uint64_t{1} << 32) - 4096;

}  // namespace gradsieve
