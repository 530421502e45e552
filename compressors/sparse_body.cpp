// SPDX-License-Identifier: Apache-2.0
#include "compressors/sparse_body.hpp"

#include <algorithm>

#include "compressors/body_fields.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {
namespace {

/// The bytes between the values and the indices.
template <typename Span>
Span padding_of(Span body, SparseBody::Fields const& fields) noexcept {
  std::size_t const values_end =
      SparseBody::kHeaderBytes + static_cast<std::size_t>(fields.value_bytes);
  std::size_t const index_begin = body.size() - static_cast<std::size_t>(fields.index_bytes);
  return body.subspan(values_end, index_begin - values_end);
}

}  // namespace

Status SparseBody::read(ConstBytes body, SparseBody& sections) noexcept {
  if (body.size() < kHeaderBytes) {
    return {Code::corrupt_payload, "the sparse body is shorter than its header"};
  }
  std::byte const* const header = body.data();
  auto const value_bytes = wire::load<std::uint64_t>(header + 8);
  auto const index_bytes = wire::load<std::uint64_t>(header + 16);
  // Each is bounded before they are added, so that the sum cannot wrap.
  if (value_bytes > body.size() || index_bytes > body.size() ||
      bytes(static_cast<std::size_t>(value_bytes), static_cast<std::size_t>(index_bytes)) !=
          body.size()) {
    return {Code::corrupt_payload, "the sections of the sparse body do not fill it"};
  }
  sections.num_indices = wire::load<std::uint64_t>(header);
  sections.index_form = wire::load<std::uint32_t>(header + 24);
  sections.values = body.subspan(kHeaderBytes, static_cast<std::size_t>(value_bytes));
  sections.index = body.last(static_cast<std::size_t>(index_bytes));
  std::size_t const values_end = kHeaderBytes + sections.values.size();
  ConstBytes const padding =
      body.subspan(values_end, body.size() - sections.index.size() - values_end);
  if (wire::load<std::uint32_t>(header + 28) != 0 || !all_zero(padding)) {
    return {Code::corrupt_payload, "reserved bytes of the sparse body are not zero"};
  }
  return {};
}

void SparseBody::write_header(ExecContext const& ctx, Bytes body, Fields const& fields) noexcept {
  kernels::put_fields(ctx, std::as_bytes(std::span(&fields, 1)), body.data());
  kernels::clear(ctx, padding_of(body, fields));
}

Status SparseBody::expect(ExecContext const& ctx, ConstBytes body, Fields const& fields,
                          SparseBody& sections) noexcept {
  bool const fits = body.size() == bytes(static_cast<std::size_t>(fields.value_bytes),
                                         static_cast<std::size_t>(fields.index_bytes));
  if (!fits || !kernels::check_fields(ctx, std::as_bytes(std::span(&fields, 1)), body.data()) ||
      !kernels::check_clear(ctx, padding_of(body, fields), {}, 0)) {
    return {Code::corrupt_payload, "the sparse body is not laid out as planned"};
  }
  sections.num_indices = fields.num_indices;
  sections.index_form = fields.index_form;
  sections.values = body.subspan(kHeaderBytes, static_cast<std::size_t>(fields.value_bytes));
  sections.index = body.last(static_cast<std::size_t>(fields.index_bytes));
  return {};
}

std::uint64_t num_selected(std::span<std::uint32_t const> indices, std::uint64_t granularity,
                           std::uint64_t num_elements) noexcept {
  if (indices.empty()) return 0;
  std::uint64_t const last_begin = indices.back() * granularity;
  std::uint64_t const last = std::min(granularity, num_elements - last_begin);
  return (indices.size() - 1) * granularity + last;
}

}  // namespace gradsieve
