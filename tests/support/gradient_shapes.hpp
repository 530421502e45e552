// SPDX-License-Identifier: Apache-2.0
// The gradients that tests are run on: one name per shape, the same numbers on every run. Real
// gradients are heavy-tailed; the others stand for what selection and rounding trip over.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "core/philox.hpp"

namespace gradsieve::testing {

enum class Shape : std::uint8_t {
  gaussian,
  heavy_tailed,      ///< a Gaussian times 2^(3·Gaussian): the top 1 % hold most of the energy
  ties,              ///< five distinct magnitudes, both signs, both zeros
  all_zero,          ///< +0 and −0
  constant,          ///< all 0.25
  one_spike,         ///< a Gaussian of 1e-3 with one 1e30
  denormal,          ///< below the smallest normal number, some of them zero
  alternating_sign,  ///< +1, −1, +1, …
  sorted_up,
  sorted_down,
  sparse,         ///< 0.05 % nonzero
  row_scaled,     ///< rows of 512 elements, each with a scale of its own
  with_nan,       ///< a Gaussian with NaN of several bit patterns, 1 % of all
  with_infinity,  ///< a Gaussian with both infinities, 1 % of all
};

inline constexpr std::array kAllShapes = {
    Shape::gaussian,  Shape::heavy_tailed,  Shape::ties,     Shape::all_zero,
    Shape::constant,  Shape::one_spike,     Shape::denormal, Shape::alternating_sign,
    Shape::sorted_up, Shape::sorted_down,   Shape::sparse,   Shape::row_scaled,
    Shape::with_nan,  Shape::with_infinity,
};

[[nodiscard]] inline std::string_view shape_name(Shape shape) {
  switch (shape) {
    case Shape::gaussian:
      return "gaussian";
    case Shape::heavy_tailed:
      return "heavy_tailed";
    case Shape::ties:
      return "ties";
    case Shape::all_zero:
      return "all_zero";
    case Shape::constant:
      return "constant";
    case Shape::one_spike:
      return "one_spike";
    case Shape::denormal:
      return "denormal";
    case Shape::alternating_sign:
      return "alternating_sign";
    case Shape::sorted_up:
      return "sorted_up";
    case Shape::sorted_down:
      return "sorted_down";
    case Shape::sparse:
      return "sparse";
    case Shape::row_scaled:
      return "row_scaled";
    case Shape::with_nan:
      return "with_nan";
    case Shape::with_infinity:
      return "with_infinity";
  }
  return "unknown";
}

/// All elements of a gradient of this shape are finite.
[[nodiscard]] inline bool is_finite_shape(Shape shape) {
  return shape != Shape::with_nan && shape != Shape::with_infinity;
}

/// Random numbers of element i, whatever was drawn before.
class ShapeNoise {
 public:
  explicit ShapeNoise(std::uint64_t seed)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)} {}

  [[nodiscard]] std::array<std::uint32_t, 4> bits(std::uint64_t i, std::uint64_t use = 0) const {
    return philox(key_, i, use);
  }
  /// Strictly between 0 and 1.
  [[nodiscard]] static double uniform(std::uint32_t bits) { return (bits + 0.5) * 0x1p-32; }
  [[nodiscard]] double gaussian(std::uint64_t i, std::uint64_t use = 0) const {
    constexpr double kTwoPi = 6.283185307179586;
    auto const random = bits(i, use);
    return std::sqrt(-2.0 * std::log(uniform(random[0]))) * std::cos(kTwoPi * uniform(random[1]));
  }

 private:
  PhiloxKey key_;
};

[[nodiscard]] inline float shape_element(Shape shape, ShapeNoise const& noise, std::uint64_t i) {
  auto const random = noise.bits(i, 1);
  bool const is_negative = (random[0] & 1u) != 0;
  bool const is_one_percent = random[1] % 100 == 0;
  switch (shape) {
    case Shape::gaussian:
    case Shape::sorted_up:
    case Shape::sorted_down:
      return static_cast<float>(noise.gaussian(i));
    case Shape::heavy_tailed:
      return static_cast<float>(noise.gaussian(i) * std::exp2(3 * noise.gaussian(i, 2)));
    case Shape::ties:
      return static_cast<float>(random[2] % 5) * (is_negative ? -0.5F : 0.5F);
    case Shape::all_zero:
      return is_negative ? -0.0F : 0.0F;
    case Shape::constant:
      return 0.25F;
    case Shape::one_spike:
      return static_cast<float>(1e-3 * noise.gaussian(i));
    case Shape::denormal:
      return std::bit_cast<float>(random[2] % 1000u | (is_negative ? 0x80000000u : 0u));
    case Shape::alternating_sign:
      return i % 2 == 0 ? 1.0F : -1.0F;
    case Shape::sparse:
      return random[1] % 2000 == 0 ? static_cast<float>(noise.gaussian(i)) : 0.0F;
    case Shape::row_scaled:
      return static_cast<float>(noise.gaussian(i) * std::exp2(2 * noise.gaussian(i / 512, 3)));
    case Shape::with_nan:
      return is_one_percent ? std::bit_cast<float>(0x7f800001u | (random[2] & 0x807fffffu))
                            : static_cast<float>(noise.gaussian(i));
    case Shape::with_infinity:
      if (is_one_percent) {
        return is_negative ? -std::numeric_limits<float>::infinity()
                           : std::numeric_limits<float>::infinity();
      }
      return static_cast<float>(noise.gaussian(i));
  }
  return 0.0F;
}

/// `num_elements` numbers of this shape; the same for the same arguments.
[[nodiscard]] inline std::vector<float> make_gradient(Shape shape, std::size_t num_elements,
                                                      std::uint64_t seed = 1) {
  ShapeNoise const noise(mix64(seed));
  std::vector<float> gradient(num_elements);
  for (std::size_t i = 0; i < num_elements; ++i) {
    gradient[i] = shape_element(shape, noise, i);
  }
  if (shape == Shape::sorted_up) {
    std::sort(gradient.begin(), gradient.end());
  } else if (shape == Shape::sorted_down) {
    std::sort(gradient.begin(), gradient.end(), [](float a, float b) { return a > b; });
  } else if (shape == Shape::one_spike && num_elements != 0) {
    gradient[noise.bits(0, 4)[0] % num_elements] = 1e30F;
  }
  return gradient;
}

}  // namespace gradsieve::testing
