// SPDX-License-Identifier: Apache-2.0
// The layout of docs/wire_format.md, section "Sparse bodies": a header of 32 bytes, the values, the
// indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

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

  /// Writes the header and the padding in front of the indices.
  static void write_header(Bytes body, std::uint64_t num_indices, std::uint32_t index_form,
                           std::size_t value_bytes, std::size_t index_bytes) noexcept;
};

/// Elements that `indices`, ascending and below ⌈n/granularity⌉, stand for: the last may be short.
[[nodiscard]] std::uint64_t num_selected(std::span<std::uint32_t const> indices,
                                         std::uint64_t granularity,
                                         std::uint64_t num_elements) noexcept;

}  // namespace gradsieve
