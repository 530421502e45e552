// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/convert.simd.hpp"

#include "kernels/cpu/half_rows.hpp"

namespace gradsieve::kernels::cpu {
namespace {

/// Halves that are widened at a time, for a loop over f32.
constexpr std::uint64_t kRowElements = 512;

void add_scaled_row(float const* values, float weight, std::uint64_t count, float* accumulator) {
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) {
    float const product = weight * values[i];
    accumulator[i] = canonical(accumulator[i] + product);
  }
}

void copy_canonical(float const* values, std::uint64_t count, float* out) {
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) out[i] = canonical(values[i]);
}

}  // namespace

namespace GRADSIEVE_TARGET {

void widen_chunk(void const* values, ElementType type, std::uint64_t count, float* out) {
  if (type == ElementType::f32)
    return copy_canonical(static_cast<float const*>(values), count, out);
  f32_row(values, type, 0, count, out);
}

void narrow_chunk(float const* values, bool saturate, ElementType type, std::uint64_t count,
                  void* out) {
  if (type == ElementType::f32) return copy_canonical(values, count, static_cast<float*>(out));
  auto* const halves = static_cast<std::uint16_t*>(out);
  if (type == ElementType::f16) return narrow_f16_row(values, count, saturate, halves);
  std::uint32_t const overflown = saturate ? 0x7f7fU : 0x7f80U;
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) halves[i] = narrow_bf16(values[i], overflown);
}

void add_scaled_chunk(void const* values, ElementType type, float weight, std::uint64_t count,
                      float* accumulator) {
  alignas(64) float buffer[kRowElements];
  for (std::uint64_t begin = 0; begin < count; begin += kRowElements) {
    std::uint64_t const n = count - begin < kRowElements ? count - begin : kRowElements;
    add_scaled_row(f32_row(values, type, begin, n, buffer), weight, n, accumulator + begin);
  }
}

}  // namespace GRADSIEVE_TARGET
}  // namespace gradsieve::kernels::cpu
