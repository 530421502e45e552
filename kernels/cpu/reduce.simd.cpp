// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/reduce.simd.hpp"

#include "kernels/cpu/lane_sums.hpp"

namespace gradsieve::kernels::cpu::GRADSIEVE_TARGET {

void scale_chunk(float factor, std::uint64_t count, float* values) {
  for (std::uint64_t i = 0; i < count; ++i) values[i] = canonical(factor * values[i]);
}

void sum_squares_blocks(float const* values, std::uint64_t num_elements,
                        std::uint64_t block_elements, double* block_sums) {
  std::uint64_t begin = 0;
  std::uint64_t const stride = std::uint64_t{kSumsAbreast} * block_elements;
  for (; block_elements % 8 == 0 && begin + stride <= num_elements; begin += stride) {
    LaneSums<Summand::square> sums[kSumsAbreast];
    for (std::uint64_t i = 0; i < block_elements; i += 8) {
#pragma GCC unroll 4
      for (int b = 0; b < kSumsAbreast; ++b) {
        sums[b].add_eight(values + begin + static_cast<std::uint64_t>(b) * block_elements + i);
      }
    }
    for (auto const& sum : sums) *block_sums++ = sum.total();
  }
  while (begin < num_elements) {
    std::uint64_t const rest = num_elements - begin;
    std::uint64_t const end = begin + (rest < block_elements ? rest : block_elements);
    LaneSums<Summand::square> sum;
    for (; begin + 8 <= end; begin += 8) sum.add_eight(values + begin);
    for (int lane = 0; begin < end; ++begin, ++lane) sum.add_one(lane, values[begin]);
    *block_sums++ = sum.total();
  }
}

std::uint32_t largest_magnitude(float const* values, std::uint64_t count) {
  std::uint32_t largest = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint32_t const magnitude = bits_of(values[i]) & ~kSignBit;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

}  // namespace gradsieve::kernels::cpu::GRADSIEVE_TARGET
