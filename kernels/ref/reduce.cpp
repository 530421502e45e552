// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/ops.hpp"
#include "kernels/ref/convert.hpp"

namespace gradsieve::kernels::ref {

void scale(ExecContext const&, StepValue<float> factor, std::span<float> values) noexcept {
  for (float& x : values) x = canonical(factor * x);
}

void sum_squares(ExecContext const&, std::span<float const> values, double* result) noexcept {
  double sum = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += 4096) {
    auto const block = values.subspan(begin, std::min<std::size_t>(4096, values.size() - begin));
    double lane[8] = {};
    for (std::size_t i = 0; i < block.size(); ++i) {
      double const x = block[i];
      lane[i % 8] += x * x;
    }
    sum +=
        ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  }
  *result = sum;
}

}  // namespace gradsieve::kernels::ref
