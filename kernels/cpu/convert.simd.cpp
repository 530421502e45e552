// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/convert.simd.hpp"

#include "kernels/cpu/element_lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

template <ElementType kType>
void widen_elements(void const* values, std::uint64_t count, float* out) {
  Elements<kType> const elements(values);
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) out[i] = canonical(elements.at(i));
}

template <ElementType kType>
void add_scaled_elements(void const* values, float weight, std::uint64_t count,
                         float* accumulator) {
  Elements<kType> const elements(values);
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) {
    float const product = weight * elements.at(i);
    accumulator[i] = canonical(accumulator[i] + product);
  }
}

}  // namespace

namespace GRADSIEVE_TARGET {

void widen_chunk(void const* values, ElementType type, std::uint64_t count, float* out) {
  if (type == ElementType::f16) return widen_elements<ElementType::f16>(values, count, out);
  if (type == ElementType::bf16) return widen_elements<ElementType::bf16>(values, count, out);
  widen_elements<ElementType::f32>(values, count, out);
}

void narrow_chunk(float const* values, bool saturate, ElementType type, std::uint64_t count,
                  void* out) {
  if (type == ElementType::f32) return widen_chunk(values, type, count, static_cast<float*>(out));
  auto* const halves = static_cast<std::uint16_t*>(out);
  if (type == ElementType::f16) {
    std::uint32_t const largest = saturate ? 0x7bffU : 0x7c00U;
    GRADSIEVE_INDEPENDENT_ITERATIONS
    for (std::uint64_t i = 0; i < count; ++i) halves[i] = narrow_f16(values[i], largest);
  } else {
    std::uint32_t const largest = saturate ? 0x7f7fU : 0x7f80U;
    GRADSIEVE_INDEPENDENT_ITERATIONS
    for (std::uint64_t i = 0; i < count; ++i) halves[i] = narrow_bf16(values[i], largest);
  }
}

void add_scaled_chunk(void const* values, ElementType type, float weight, std::uint64_t count,
                      float* accumulator) {
  if (type == ElementType::f16) {
    return add_scaled_elements<ElementType::f16>(values, weight, count, accumulator);
  }
  if (type == ElementType::bf16) {
    return add_scaled_elements<ElementType::bf16>(values, weight, count, accumulator);
  }
  add_scaled_elements<ElementType::f32>(values, weight, count, accumulator);
}

}  // namespace GRADSIEVE_TARGET
}  // namespace gradsieve::kernels::cpu
