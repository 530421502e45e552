// SPDX-License-Identifier: Apache-2.0
// The layout of docs/wire_format.md, section "Sparse bodies": a header of 32 bytes, the values, the
// indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gradsieve/context.hpp"
#include "gradsieve/wire.hpp"

namespace gradsieve {

/// The sections of a sparse body that a peer wrote: they lie within it, nothing else is known.
struct SparseBody {
  static constexpr std::size_t kHeaderBytes = 32;

  std::uint64_t num_indices = 0;
  std::uint32_t index_form = 0;
  ConstBytes values;
  ConstBytes index;

  /// Length of a body with sections of these lengths.
  [[nodiscard]] static constexpr std::size_t bytes(std::size_t value_bytes,
                                                   std::size_t index_bytes) noexcept {
    std::size_t const end = kHeaderBytes + value_bytes;
    return index_bytes == 0 ? end : wire::aligned(end) + index_bytes;
  }

  /// Code::corrupt_payload unless lengths, reserved words and padding are as the layout says.
  static Status read(ConstBytes body, SparseBody& sections) noexcept;

  /// What a reader knows before it has seen anything: all of it, where bodies are laid out by
  /// capacity.
  struct Fields {
    std::uint64_t num_indices = 0;
    std::uint64_t value_bytes = 0;
    std::uint64_t index_bytes = 0;
    std::uint32_t index_form = 0;
    std::uint32_t reserved = 0;
  };
  static_assert(sizeof(Fields) == kHeaderBytes);

  /// Writes the header and the padding in front of the indices.
  static void write_header(ExecContext const& ctx, Bytes body, Fields const& fields) noexcept;

  /// As read(), of a body that must have these fields; on cuda without looking into it.
  static Status expect(ExecContext const& ctx, ConstBytes body, Fields const& fields,
                       SparseBody& sections) noexcept;
};

/// Elements that `indices`, ascending and below ⌈n/granularity⌉, stand for: the last may be short.
[[nodiscard]] std::uint64_t num_selected(std::span<std::uint32_t const> indices,
                                         std::uint64_t granularity,
                                         std::uint64_t num_elements) noexcept;

}  // namespace gradsieve
