// SPDX-License-Identifier: Apache-2.0
// A few bytes, or what the C library does as fast as memory: nothing to add to `ref`.
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cpu {

void clear(ExecContext const& ctx, std::span<std::byte> bytes) noexcept { ref::clear(ctx, bytes); }

void copy(ExecContext const& ctx, std::span<std::byte const> from,
          std::span<std::byte> to) noexcept {
  ref::copy(ctx, from, to);
}

void count_selection(ExecContext const& ctx, SparseView const& selection,
                     std::uint64_t universe) noexcept {
  ref::count_selection(ctx, selection, universe);
}

void put_fields(ExecContext const& ctx, std::span<std::byte const> fields, std::byte* at) noexcept {
  ref::put_fields(ctx, fields, at);
}

bool check_fields(ExecContext const& ctx, std::span<std::byte const> fields,
                  std::byte const* at) noexcept {
  return ref::check_fields(ctx, fields, at);
}

bool check_scales(ExecContext const& ctx, std::span<std::byte const> scales) noexcept {
  return ref::check_scales(ctx, scales);
}

bool check_clear(ExecContext const& ctx, std::span<std::byte const> bytes,
                 std::span<std::byte const> mask, unsigned skipped_bits) noexcept {
  return ref::check_clear(ctx, bytes, mask, skipped_bits);
}

}  // namespace gradsieve::kernels::cpu
