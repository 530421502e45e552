// SPDX-License-Identifier: Apache-2.0
// From a body that a peer wrote to the accumulator. Everything is checked before the first store,
// so that a bad payload leaves the accumulator as it was.
#include <algorithm>

#include "compressors/body_fields.hpp"
#include "compressors/pipeline.hpp"
#include "compressors/pipeline_parts.hpp"
#include "kernels/index_forms.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {
namespace {

/// Undoes the byte stage, if there is one: `body` becomes what went into it.
Status unwrap(ExecContext const& ctx, ByteCodec const* bytes, std::size_t raw_capacity,
              ConstBytes& body) noexcept {
  if (bytes == nullptr) return {};
  Bytes const raw = ctx.workspace->take<std::byte>(raw_capacity);
  if (raw.empty()) return kWorkspaceTooSmall;
  std::size_t num_bytes = 0;
  GRADSIEVE_RETURN_IF_ERROR(bytes->decode(ctx, body, raw, num_bytes));
  body = raw.first(num_bytes);
  return {};
}

}  // namespace

Status Pipeline::do_decode_add(ExecContext const& ctx, int round, TensorInfo const& piece,
                               ConstBytes body, float weight, StateView state,
                               std::span<float> accumulator) const noexcept {
  if (round < values_round())
    return {};  // what was agreed is in the state, there is nothing to add
  WorkspaceScope const scope(*ctx.workspace);
  GRADSIEVE_RETURN_IF_ERROR(unwrap(ctx, bytes_.get(), raw_capacity(piece), body));
  if (sparsifier_ != nullptr) return decode_sparse(ctx, piece, body, weight, state, accumulator);
  return values_->decode_add(ctx, 0, piece, body, static_cast<double>(weight), state,
                             TensorView(accumulator));
}

Status Pipeline::do_decode_add_f64(ExecContext const& ctx, TensorInfo const& piece, ConstBytes body,
                                   double weight, std::span<double> accumulator) const noexcept {
  WorkspaceScope const scope(*ctx.workspace);
  GRADSIEVE_RETURN_IF_ERROR(unwrap(ctx, bytes_.get(), raw_capacity(piece), body));
  return values_->decode_add(ctx, 0, piece, body, weight, {}, TensorView(accumulator));
}

Status Pipeline::decode_sparse(ExecContext const& ctx, TensorInfo const& piece, ConstBytes body,
                               float weight, StateView state,
                               std::span<float> accumulator) const noexcept {
  SparseBody sections;
  sections.values = body;
  if (!sums_values_) {
    GRADSIEVE_RETURN_IF_ERROR(ctx.backend == Backend::cuda
                                  ? SparseBody::expect(ctx, body, fixed_fields(piece), sections)
                                  : SparseBody::read(body, sections));
  }
  std::span<std::uint32_t> indices =
      ctx.workspace->take<std::uint32_t>(sparsifier_->capacity_indices(piece));
  if (indices.empty()) return kWorkspaceTooSmall;
  GRADSIEVE_RETURN_IF_ERROR(read_indices(ctx, piece, sections, state, indices));
  return scatter_values(ctx, piece, sections.values, indices, weight, accumulator);
}

/// `indices`: room for the largest set on entry, the set itself on return.
Status Pipeline::read_indices(ExecContext const& ctx, TensorInfo const& piece,
                              SparseBody const& sections, StateView state,
                              std::span<std::uint32_t>& indices) const noexcept {
  if (shared_) {
    std::uint64_t count = 0;
    GRADSIEVE_RETURN_IF_ERROR(sparsifier_->shared_set(ctx, piece, state, indices, count));
    indices = indices.first(count);
    if (sums_values_) return {};
    bool const as_expected =
        sections.num_indices == count && sections.index.empty() &&
        sections.index_form == static_cast<std::uint32_t>(kernels::IndexForm::shared);
    return as_expected ? Status{}
                       : Status{Code::corrupt_payload, "the body does not go with the shared set"};
  }
  if (sections.num_indices > indices.size()) {
    return {Code::corrupt_payload, "more indices than this tensor's share"};
  }
  indices = indices.first(static_cast<std::size_t>(sections.num_indices));
  if (!kernels::decode_indices(ctx, sections.index_form, sections.index, coded_universe(ctx, piece),
                               indices)) {
    return {Code::corrupt_payload, "the indices do not decode to ascending places in the tensor"};
  }
  return {};
}

Status Pipeline::scatter_values(ExecContext const& ctx, TensorInfo const& piece, ConstBytes values,
                                std::span<std::uint32_t const> indices, float weight,
                                std::span<float> accumulator) const noexcept {
  std::uint64_t const count = ctx.backend == Backend::cuda
                                  ? capacity_values(piece)
                                  : num_selected(indices, granularity(), piece.num_elements);
  std::span<float const> decoded;
  if (plain_) {
    if (values.size() != count * sizeof(float)) {
      return {Code::corrupt_payload, "the values do not match the indices in number"};
    }
    decoded = {reinterpret_cast<float const*>(values.data()), static_cast<std::size_t>(count)};
  } else {
    std::span<float> const room = ctx.workspace->take<float>(count);
    if (room.size() != count) return kWorkspaceTooSmall;
    kernels::clear(ctx, std::as_writable_bytes(room));
    GRADSIEVE_RETURN_IF_ERROR(
        values_->decode_add(ctx, 0, values_of(piece, count), values, 1.0, {}, TensorView(room)));
    decoded = room;
  }
  kernels::scatter_add(ctx, indices, granularity(), decoded, weight, accumulator);
  return {};
}

}  // namespace gradsieve
