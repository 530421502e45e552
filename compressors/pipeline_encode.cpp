// SPDX-License-Identifier: Apache-2.0
// From chosen elements to a body.
#include <algorithm>

#include "compressors/body_fields.hpp"
#include "compressors/pipeline.hpp"
#include "compressors/pipeline_parts.hpp"
#include "kernels/index_forms.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {

/// Room for the largest selection; false if the workspace is too small.
bool Pipeline::take_room(ExecContext const& ctx, TensorInfo const& piece,
                         SparseView& selection) const noexcept {
  selection.granularity = granularity();
  selection.indices = ctx.workspace->take<std::uint32_t>(sparsifier_->capacity_indices(piece));
  selection.values = ctx.workspace->take<float>(capacity_values(piece));
  if (ctx.backend == Backend::cuda) {
    selection.counts = ctx.workspace->take<SparseCounts>(1).data();
    if (selection.counts == nullptr) return false;
  }
  return !selection.indices.empty() && !selection.values.empty();
}

Status Pipeline::encode_own(ExecContext const& ctx, TensorInfo const& piece,
                            ConstTensorView gradient, ResidualView residual, StateView state,
                            Body body) const noexcept {
  SparseView selection;
  if (!take_room(ctx, piece, selection)) return kWorkspaceTooSmall;
  GRADSIEVE_RETURN_IF_ERROR(sparsifier_->select(ctx, piece, gradient, residual, state, selection));
  kernels::count_selection(ctx, selection, universe(piece));
  if (ctx.backend == Backend::cuda) {  // the rest of the room holds what stands for nothing
    selection.num_indices = selection.indices.size();
    selection.num_values = selection.values.size();
  }
  Status const status = through_bytes(
      ctx, bytes_.get(), raw_capacity(piece), body,
      [&](Body raw) noexcept { return write_sparse(ctx, piece, selection, residual.out, raw); });
  if (!status.ok()) put_back(ctx, selection, residual.out);
  return status;
}

Status Pipeline::encode_shared(ExecContext const& ctx, TensorInfo const& piece,
                               std::span<float> corrected, TakeShared take, StateView state,
                               Body body) const noexcept {
  SparseView selection;
  if (!take_room(ctx, piece, selection)) return kWorkspaceTooSmall;
  GRADSIEVE_RETURN_IF_ERROR(
      sparsifier_->shared_set(ctx, piece, state, selection.indices, selection.num_indices));
  auto const indices = selection.indices.first(selection.num_indices);
  if (ctx.backend == Backend::cuda) {
    selection.num_values = selection.values.size();  // its set always fills its room
    SparseCounts const counts = {selection.num_indices, selection.num_values, 0};
    kernels::put_fields(ctx, std::as_bytes(std::span(&counts, 1)),
                        reinterpret_cast<std::byte*>(selection.counts));
  } else {
    selection.num_values = num_selected(indices, granularity(), piece.num_elements);
  }
  take(indices, selection.values.first(selection.num_values));
  kernels::count_selection(ctx, selection, universe(piece));
  Status const status =
      sums_values_
          ? encode_values(ctx, piece, selection, corrected, body)
          : through_bytes(ctx, bytes_.get(), raw_capacity(piece), body, [&](Body raw) noexcept {
              return write_sparse(ctx, piece, selection, corrected, raw);
            });
  if (!status.ok()) put_back(ctx, selection, corrected);
  return status;
}

/// `residual` holds zeros where the values were taken; there goes what the codec loses of them.
Status Pipeline::encode_values(ExecContext const& ctx, TensorInfo const& piece,
                               SparseView const& selection, std::span<float> residual,
                               Body body) const noexcept {
  TensorInfo const info = values_of(piece, selection.num_values);
  std::span<float> const values = selection.values.first(selection.num_values);
  bool const rescales = shared_ && sparsifier_->rescales();
  if (values.empty() || (values_->claims().lossless && !rescales)) {
    return values_->encode(ctx, 0, info, values, {}, body);
  }
  std::span<float> const lost = ctx.workspace->take<float>(values.size());
  std::span<float> const decoded = ctx.workspace->take<float>(values.size());
  if (lost.empty() || decoded.empty()) return kWorkspaceTooSmall;
  kernels::copy(ctx, std::as_bytes(values), std::as_writable_bytes(lost));
  kernels::clear(ctx, std::as_writable_bytes(decoded));
  if (rescales) sparsifier_->rescale(ctx, piece, values);
  GRADSIEVE_RETURN_IF_ERROR(values_->encode(ctx, 0, info, values, {}, body));
  GRADSIEVE_RETURN_IF_ERROR(
      values_->decode_add(ctx, 0, info, body.written(), 1.0, {}, TensorView(decoded)));
  kernels::retain(ctx, decoded, lost);
  kernels::scatter_add(ctx, selection.indices.first(selection.num_indices), granularity(), lost,
                       1.0F, residual);
  return {};
}

Status Pipeline::write_sparse(ExecContext const& ctx, TensorInfo const& piece,
                              SparseView const& selection, std::span<float> residual,
                              Body body) const noexcept {
  std::uint64_t const count = selection.num_indices;
  std::size_t const value_capacity = value_bytes(piece, selection.num_values);
  std::uint64_t const coded = coded_universe(ctx, piece);
  std::size_t const index_capacity = shared_ ? 0 : index_->bound(coded, count);
  Bytes const area = body.resize(SparseBody::bytes(value_capacity, index_capacity));
  if (area.empty()) return kBodyTooSmall;

  std::uint64_t num_value_bytes = 0;
  Body const value_body(area.subspan(SparseBody::kHeaderBytes, value_capacity), &num_value_bytes);
  GRADSIEVE_RETURN_IF_ERROR(encode_values(ctx, piece, selection, residual, value_body));

  std::uint32_t form = static_cast<std::uint32_t>(kernels::IndexForm::shared);
  std::uint64_t num_index_bytes = 0;
  if (!shared_) {
    std::size_t const begin = wire::aligned(SparseBody::kHeaderBytes + num_value_bytes);
    Body const index_body(area.subspan(std::min(begin, area.size())), &num_index_bytes);
    GRADSIEVE_RETURN_IF_ERROR(
        index_->encode(ctx, coded, selection.indices.first(count), index_body, form));
  }
  Bytes const written = body.resize(SparseBody::bytes(num_value_bytes, num_index_bytes));
  SparseBody::write_header(ctx, written,
                           {.num_indices = count,
                            .value_bytes = num_value_bytes,
                            .index_bytes = num_index_bytes,
                            .index_form = form});
  return {};
}

}  // namespace gradsieve
