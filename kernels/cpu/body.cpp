// SPDX-License-Identifier: Apache-2.0
// A few bytes, or what the C library does as fast as memory: nothing to add to `ref`. But scales
// and planes may be long.
#include "kernels/cpu/body.simd.hpp"
#include "kernels/cpu/simd_dispatch.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cpu {
namespace {

unsigned char const* bytes_of(std::span<std::byte const> bytes) noexcept {
  return reinterpret_cast<unsigned char const*>(bytes.data());
}

}  // namespace

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

bool check_scales(ExecContext const&, std::span<std::byte const> scales) noexcept {
  constexpr std::uint32_t kInfinity = 0x7f800000;  // negative numbers are above it, too
  return GRADSIEVE_PICK(largest_word)(scales.data(), scales.size() / sizeof(float)) < kInfinity;
}

bool check_clear(ExecContext const& ctx, std::span<std::byte const> bytes,
                 std::span<std::byte const> mask, unsigned skipped_bits) noexcept {
  if (bytes.empty()) return true;
  auto const rest_of_mask = mask.empty() ? nullptr : bytes_of(mask) + 1;
  return ref::check_clear(ctx, bytes.first(1), mask.first(mask.empty() ? 0 : 1), skipped_bits) &&
         !GRADSIEVE_PICK(any_bit)(bytes_of(bytes) + 1, rest_of_mask, bytes.size() - 1);
}

}  // namespace gradsieve::kernels::cpu
