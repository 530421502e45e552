// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/reduce.simd.hpp"

#include "kernels/cpu/element_lanes.hpp"

namespace gradsieve::kernels::cpu::GRADSIEVE_TARGET {

void scale_chunk(float factor, std::uint64_t count, float* values) {
  for (std::uint64_t i = 0; i < count; ++i) values[i] = canonical(factor * values[i]);
}

double sum_squares_block(float const* values, std::uint64_t count) {
  // Two vectors of four lanes: wider ones are taken apart by compilers, and badly.
  typedef float Floats __attribute__((vector_size(16)));
  typedef double Lanes __attribute__((vector_size(32)));
  Lanes low = {};
  Lanes high = {};
  std::uint64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    Floats first;
    Floats second;
    __builtin_memcpy(&first, values + i, sizeof first);
    __builtin_memcpy(&second, values + i + 4, sizeof second);
    Lanes const x = __builtin_convertvector(first, Lanes);
    Lanes const y = __builtin_convertvector(second, Lanes);
    low += x * x;
    high += y * y;
  }
  double rest[8] = {};
  for (int lane = 0; i < count; ++i, ++lane) {
    double const x = values[i];
    rest[lane] = x * x;
  }
  for (int lane = 0; lane < 4; ++lane) {
    low[lane] += rest[lane];
    high[lane] += rest[lane + 4];
  }
  return ((low[0] + low[1]) + (low[2] + low[3])) + ((high[0] + high[1]) + (high[2] + high[3]));
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
