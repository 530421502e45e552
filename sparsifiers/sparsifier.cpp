// SPDX-License-Identifier: Apache-2.0
// What every sparsifier shares: the checks around select, and what it answers to questions that
// are not its own.
#include "gradsieve/sparsifier.hpp"

namespace gradsieve {
namespace {

constexpr Status kNotShared{Code::internal, "this sparsifier shares no index set"};

}  // namespace

Status Sparsifier::select(ExecContext const& ctx, TensorInfo const& piece, ConstTensorView gradient,
                          ResidualView residual, StateView state,
                          SparseView& selection) const noexcept {
  if (gradient.num_elements != piece.num_elements || residual.out.size() != piece.num_elements ||
      (!residual.in.empty() && residual.in.size() != piece.num_elements)) {
    return {Code::invalid_argument, "the gradient, the residual and the piece differ in length"};
  }
  if (piece.num_elements > kMaxPieceElements) {
    return {Code::invalid_argument, "the piece is longer than kMaxPieceElements"};
  }
  if (gradient.dtype == DType::f64) {
    return {Code::unsupported, "sparsifiers do not take f64 gradients"};
  }
  selection.num_indices = 0;
  selection.num_values = 0;
  selection.num_overflowed = 0;
  selection.granularity = granularity();
  if (piece.num_elements == 0) return {};
  if (selection.indices.size() < capacity_indices(piece)) {
    return {Code::invalid_argument, "the selection has no room for capacity_indices"};
  }
  return do_select(ctx, piece, gradient, residual, state, selection);
}

Status Sparsifier::do_select(ExecContext const&, TensorInfo const&, ConstTensorView, ResidualView,
                             StateView, SparseView&) const noexcept {
  return {Code::internal, "this sparsifier's set is shared: it is not selected by each rank"};
}

Status Sparsifier::propose(ExecContext const&, TensorInfo const&, std::span<float const>, StateView,
                           Body) const noexcept {
  return kNotShared;
}

Status Sparsifier::agree(ExecContext const&, TensorInfo const&, std::span<ConstBytes const>,
                         StateView) const noexcept {
  return kNotShared;
}

Status Sparsifier::shared_set(ExecContext const&, TensorInfo const&, StateView,
                              std::span<std::uint32_t>, std::uint64_t&) const noexcept {
  return kNotShared;
}

}  // namespace gradsieve
