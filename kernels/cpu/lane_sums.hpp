// SPDX-License-Identifier: Apache-2.0
// Sums in double, in eight lanes as SumSquaresFn defines them. For .simd.cpp files only: everything
// is local to the file that includes it.
#pragma once

#include "kernels/cpu/lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

enum class Summand { magnitude, square };

/// Lane j takes the elements ≡ j mod 8.
template <Summand kSummand>
class LaneSums {
 public:
  [[gnu::always_inline]] void add_eight(float const* values) {
    for (int part = 0; part < kParts; ++part) {
      auto const bits = load<SomeWords>(values + part * kWidth) & 0x7fffffff;
#if defined(__AVX512F__)
      auto const x = reinterpret_cast<SomeDoubles>(
          _mm512_maskz_cvtps_pd(0xff, reinterpret_cast<__m256>(bits)));
#elif defined(__AVX2__)
      // g++ 12 converts two at a time, through the stack.
      auto const x = reinterpret_cast<SomeDoubles>(_mm256_cvtps_pd(reinterpret_cast<__m128>(bits)));
#else
      auto const x = __builtin_convertvector(reinterpret_cast<SomeFloats>(bits), SomeDoubles);
#endif
      lanes_[part] += kSummand == Summand::square ? x * x : x;
    }
  }
  [[gnu::always_inline]] void add_one(int lane, float value) {
    double const x = __builtin_fabsf(value);
    lanes_[lane / kWidth][lane % kWidth] += kSummand == Summand::square ? x * x : x;
  }
  double total() const {
    return ((lane(0) + lane(1)) + (lane(2) + lane(3))) +
           ((lane(4) + lane(5)) + (lane(6) + lane(7)));
  }

 private:
#if defined(__AVX512F__)
  static constexpr int kWidth = 8;
#else
  static constexpr int kWidth = 4;  // compilers take wider vectors apart, and badly
#endif
  static constexpr int kParts = 8 / kWidth;
  typedef float SomeFloats __attribute__((vector_size(4 * kWidth)));
  typedef std::int32_t SomeWords __attribute__((vector_size(4 * kWidth)));
  typedef double SomeDoubles __attribute__((vector_size(8 * kWidth)));

  double lane(int i) const { return lanes_[i / kWidth][i % kWidth]; }

  SomeDoubles lanes_[kParts] = {};
};

/// So many sums are made side by side: the additions of one wait for one another, those of several
/// do not.
inline constexpr int kSumsAbreast = kLanes == 4 ? 1 : 4;

}  // namespace
}  // namespace gradsieve::kernels::cpu
