// SPDX-License-Identifier: Apache-2.0
// What stands around the coded elements of a body: fields, padding, counts.
#include <algorithm>
#include <cstring>

#include "kernels/ops.hpp"

namespace gradsieve::kernels::ref {

void clear(ExecContext const&, std::span<std::byte> bytes) noexcept {
  std::ranges::fill(bytes, std::byte{0});
}

void copy(ExecContext const&, std::span<std::byte const> from, std::span<std::byte> to) noexcept {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

void count_selection(ExecContext const& ctx, SparseView const& selection, std::uint64_t) noexcept {
  ctx.words->kept_elements += selection.num_values;
  ctx.words->overflowed_elements += selection.num_overflowed;
  if (selection.num_overflowed > 0) ctx.words->flags |= kStepOverflow;
}

void put_fields(ExecContext const&, std::span<std::byte const> fields, std::byte* at) noexcept {
  std::ranges::copy(fields, at);
}

bool check_fields(ExecContext const&, std::span<std::byte const> fields,
                  std::byte const* at) noexcept {
  return std::equal(fields.begin(), fields.end(), at);
}

// The sign bit is clear and the exponent below all ones.
bool check_scales(ExecContext const&, std::span<std::byte const> scales) noexcept {
  for (std::size_t i = 0; i + sizeof(float) <= scales.size(); i += sizeof(float)) {
    if (wire::load<std::uint32_t>(scales.data() + i) >= 0x7f800000U) return false;
  }
  return true;
}

bool check_clear(ExecContext const&, std::span<std::byte const> bytes,
                 std::span<std::byte const> mask, unsigned skipped_bits) noexcept {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::byte seen = bytes[i] & (mask.empty() ? std::byte{0xff} : mask[i]);
    if (i == 0) seen >>= skipped_bits;
    if (seen != std::byte{0}) return false;
  }
  return true;
}

}  // namespace gradsieve::kernels::ref
