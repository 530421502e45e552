// SPDX-License-Identifier: Apache-2.0
// What a rank has to send, and what of it cannot be sent: one element, in any precision.
#pragma once

#include <cmath>

#include "kernels/ops.hpp"

namespace gradsieve::kernels::ref {

/// c = g + carry·e where that is finite, else carry·e.
template <typename T>
[[nodiscard]] T compensated(T gradient, T carry, T residual, Flags& flags) noexcept {
  T const carried = carry * residual;
  T const sum = gradient + carried;
  if (std::isfinite(sum)) return sum;
  flags |= kStepNonFinite;
  return carried;
}

}  // namespace gradsieve::kernels::ref
