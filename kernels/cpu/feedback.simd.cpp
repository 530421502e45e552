// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/feedback.simd.hpp"

#include "kernels/cpu/compensate_lanes.hpp"
#include "kernels/cpu/philox_lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

static_assert(kPhiloxSlack <= kRandomSlack);

template <ElementType kType, typename Residual>
std::uint32_t compensate_elements(void const* gradient, Residual residual_in, float carry,
                                  std::uint64_t count, float* residual_out) {
  Elements<kType> const elements(gradient);
  std::uint32_t non_finite = 0;
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) {
    residual_out[i] = compensated(elements.at(i), carry, residual_in[i], non_finite);
  }
  return non_finite;
}

template <ElementType kType>
std::uint32_t compensate_typed(void const* gradient, float const* residual_in, float carry,
                               std::uint64_t count, float* residual_out) {
  if (residual_in == nullptr) {
    return compensate_elements<kType>(gradient, NoResidual{}, carry, count, residual_out);
  }
  return compensate_elements<kType>(gradient, residual_in, carry, count, residual_out);
}

}  // namespace

namespace GRADSIEVE_TARGET {

std::uint32_t compensate_chunk(void const* gradient, ElementType type, float const* residual_in,
                               float carry, std::uint64_t count, float* residual_out) {
  auto const run = type == ElementType::f16    ? compensate_typed<ElementType::f16>
                   : type == ElementType::bf16 ? compensate_typed<ElementType::bf16>
                                               : compensate_typed<ElementType::f32>;
  return run(gradient, residual_in, carry, count, residual_out);
}

void retain_chunk(float const* decoded, std::uint64_t count, float* residual) {
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) residual[i] = canonical(residual[i] - decoded[i]);
}

void store_bf16_chunk(float const* values, std::uint16_t const* random, std::uint64_t count,
                      std::uint16_t* out) {
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint32_t const bits = bits_of(values[i]);
    std::uint32_t const absolute = bits & ~kSignBit;
    std::uint32_t const moved = absolute + random[i];
    std::uint32_t const finite = moved < kInfinityBits ? moved : kInfinityBits - 1;
    std::uint32_t const kept = absolute < kInfinityBits ? finite : absolute;
    std::uint32_t const signed_bits = kept | (bits & kSignBit);
    out[i] = static_cast<std::uint16_t>((absolute > kInfinityBits ? kNanBits : signed_bits) >> 16);
  }
}

void random_rows(std::uint32_t key_low, std::uint32_t key_high, std::uint64_t step,
                 std::uint64_t first_block, std::uint64_t num_blocks, std::uint16_t* random) {
  philox_rows({key_low, key_high, step}, first_block, num_blocks, random);
}

}  // namespace GRADSIEVE_TARGET
}  // namespace gradsieve::kernels::cpu
