// SPDX-License-Identifier: Apache-2.0
#include "compressors/sparse_body.hpp"

#include <algorithm>

#include "compressors/body_fields.hpp"

namespace gradsieve {

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

void SparseBody::write_header(Bytes body, std::uint64_t num_indices, std::uint32_t index_form,
                              std::size_t value_bytes, std::size_t index_bytes) noexcept {
  std::byte* const header = body.data();
  wire::store<std::uint64_t>(header, num_indices);
  wire::store<std::uint64_t>(header + 8, value_bytes);
  wire::store<std::uint64_t>(header + 16, index_bytes);
  wire::store<std::uint32_t>(header + 24, index_form);
  wire::store<std::uint32_t>(header + 28, 0);
  std::size_t const values_end = kHeaderBytes + value_bytes;
  std::size_t const padding = bytes(value_bytes, index_bytes) - index_bytes - values_end;
  std::fill_n(body.data() + values_end, padding, std::byte{0});
}

std::uint64_t num_selected(std::span<std::uint32_t const> indices, std::uint64_t granularity,
                           std::uint64_t num_elements) noexcept {
  if (indices.empty()) return 0;
  std::uint64_t const last_begin = indices.back() * granularity;
  std::uint64_t const last = std::min(granularity, num_elements - last_begin);
  return (indices.size() - 1) * granularity + last;
}

}  // namespace gradsieve
