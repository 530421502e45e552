// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gradsieve/vocabulary.hpp"

#include "kernels/cpu/element.hpp"

namespace gradsieve::kernels::cpu {

static_assert(static_cast<int>(ElementType::f32) == static_cast<int>(DType::f32));
static_assert(static_cast<int>(ElementType::f16) == static_cast<int>(DType::f16));
static_assert(static_cast<int>(ElementType::bf16) == static_cast<int>(DType::bf16));

[[nodiscard]] constexpr ElementType element_type(DType dtype) noexcept {
  return static_cast<ElementType>(dtype);
}

}  // namespace gradsieve::kernels::cpu
