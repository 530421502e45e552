// SPDX-License-Identifier: Apache-2.0
// c of a window of blocks, made right before what else is done to it while it is in the first-level
// cache. For .simd.cpp files only: everything is local to the file that includes it.
#pragma once

#include "kernels/cpu/compensate_lanes.hpp"
#include "kernels/cpu/half_rows.hpp"
#include "kernels/cpu/lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

/// Elements that are widened at a time.
inline constexpr std::uint64_t kRowElements = 1024;

[[maybe_unused]] std::uint64_t smaller(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }

/// The largest magnitude among the sums g + carry·e, by its bits: they are in the order of the
/// magnitudes, and what is not finite lies above all that is.
template <typename Residual>
std::int32_t compensate_row(float const* gradient, Residual residual_in, float carry,
                            std::uint64_t count, float* corrected) {
  std::int32_t largest_bits = 0;
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) {
    float const carried = carry * residual_in[i];
    float const sum = gradient[i] + carried;
    auto const magnitude = static_cast<std::int32_t>(bits_of(sum) & ~kSignBit);
    largest_bits = magnitude > largest_bits ? magnitude : largest_bits;
    corrected[i] = magnitude < static_cast<std::int32_t>(kInfinityBits) ? sum : carried;
  }
  return largest_bits;
}

/// What c is made of. `residual_in` may be null: e = 0.
struct Uncorrected {
  void const* gradient;
  ElementType type;
  float const* residual_in;
  float carry;
};

/// c of the elements [begin, begin + count), and the largest magnitude's bits, as compensate_row.
[[maybe_unused]] std::int32_t compensate_block(Uncorrected const& source, std::uint64_t begin,
                                               std::uint64_t count, float* corrected) {
  alignas(64) float buffer[kRowElements];
  std::int32_t largest_bits = 0;
  for (std::uint64_t done = 0; done < count; done += kRowElements) {
    std::uint64_t const n = smaller(kRowElements, count - done);
    std::uint64_t const at = begin + done;
    float const* const gradient = f32_row(source.gradient, source.type, at, n, buffer);
    std::int32_t const row_bits =
        source.residual_in == nullptr
            ? compensate_row(gradient, NoResidual{}, source.carry, n, corrected + done)
            : compensate_row(gradient, source.residual_in + at, source.carry, n, corrected + done);
    largest_bits = row_bits > largest_bits ? row_bits : largest_bits;
  }
  return largest_bits;
}

}  // namespace
}  // namespace gradsieve::kernels::cpu
