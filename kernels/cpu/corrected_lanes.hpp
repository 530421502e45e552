// SPDX-License-Identifier: Apache-2.0
// c = g + carry·e of kLanes elements, as the ref kernel `compensate` defines it. For .simd.cpp
// files only: everything is local to the file that includes it.
#pragma once

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

/// What is to be sent: c of the elements from i on.
template <ElementType kType, bool kHasResidual>
struct Corrected {
  static constexpr std::uint64_t kSize = kType == ElementType::f32 ? 4 : 2;
  char const* gradient;
  float const* residual;
  Floats carry;

  Corrected(void const* elements, float const* residual_in, float times)
      : gradient(static_cast<char const*>(elements)),
        residual(residual_in),
        carry(all_floats(times)) {}

  [[gnu::always_inline]] inline Floats at(std::uint64_t i, Words& non_finite) const {
    Floats const e = kHasResidual ? load<Floats>(residual + i) : Floats{};
    Floats const carried = carry * e;
    Floats const sum = load_elements<kType>(gradient + i * kSize) + carried;
    Words const is_infinite = magnitudes(sum) > all_words(kInfinityBits - 1);
    non_finite |= is_infinite;
    return is_infinite ? carried : sum;
  }
};

}  // namespace
}  // namespace gradsieve::kernels::cpu
