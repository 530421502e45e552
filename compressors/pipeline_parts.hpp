// SPDX-License-Identifier: Apache-2.0
// Small parts of `pipeline` that its three sources share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gradsieve/registry.hpp"

#include "compressors/body_fields.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {

/// The chosen elements of a piece as the value codec sees them: f32, and at the piece's place, so
/// that no two pieces of a tensor round with the same random numbers.
[[nodiscard]] inline TensorInfo values_of(TensorInfo const& piece,
                                          std::uint64_t num_values) noexcept {
  return {.id = piece.id,
          .offset_elements = piece.offset_elements,
          .num_elements = num_values,
          .num_rows = 1,
          .dtype = DType::f32};
}

/// What could not be sent stays: c again where it was taken.
inline void put_back(ExecContext const& ctx, SparseView const& selection,
                     std::span<float> corrected) noexcept {
  if (ctx.backend == Backend::cuda) {  // there stands +0
    kernels::scatter_add(ctx, selection.indices, selection.granularity, selection.values, 1.0F,
                         corrected);
    return;
  }
  std::uint64_t next = 0;
  for (std::uint32_t const index : selection.indices.first(selection.num_indices)) {
    std::uint64_t const begin = std::uint64_t{index} * selection.granularity;
    std::uint64_t const end =
        std::min<std::uint64_t>(begin + selection.granularity, corrected.size());
    for (std::uint64_t i = begin; i < end; ++i) corrected[i] = selection.values[next++];
  }
}

/// encode(raw body), then the byte stage if there is one. Takes from the workspace without giving
/// back: the caller has a scope.
template <typename Encode>
Status through_bytes(ExecContext const& ctx, ByteCodec const* bytes, std::size_t raw_capacity,
                     Body body, Encode const& encode) noexcept {
  if (bytes == nullptr) return encode(body);
  std::span<std::byte> const room = ctx.workspace->take<std::byte>(raw_capacity);
  if (room.empty()) return kWorkspaceTooSmall;
  std::uint64_t raw_bytes = 0;
  Body const raw(room, &raw_bytes);
  GRADSIEVE_RETURN_IF_ERROR(encode(raw));
  return bytes->encode(ctx, raw.written(), body);
}

}  // namespace gradsieve
