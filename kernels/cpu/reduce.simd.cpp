// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/reduce.simd.hpp"

#include "kernels/cpu/element_lanes.hpp"

namespace gradsieve::kernels::cpu::GRADSIEVE_TARGET {

void scale_chunk(float factor, std::uint64_t count, float* values) {
  for (std::uint64_t i = 0; i < count; ++i) values[i] = canonical(factor * values[i]);
}

double sum_squares_block(float const* values, std::uint64_t count) {
  // The lanes are part of the definition: a vector register holds eight or four or one of them.
  typedef float Floats __attribute__((vector_size(32)));
  typedef double Lanes __attribute__((vector_size(64)));
  Lanes lane = {};
  std::uint64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    Floats x;
    __builtin_memcpy(&x, values + i, sizeof x);
    Lanes const wide = __builtin_convertvector(x, Lanes);
    lane += wide * wide;
  }
  for (int j = 0; i < count; ++i, ++j) {
    double const x = values[i];
    lane[j] += x * x;
  }
  return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
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
