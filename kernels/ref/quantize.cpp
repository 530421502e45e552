// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/ops.hpp"
#include "kernels/ref/convert.hpp"

namespace gradsieve::kernels::ref {
namespace {

float num_levels(int bits) noexcept { return bits == 8 ? 127.0F : 7.0F; }

// The largest element has to have a level, and its decoded value has to be finite.
float block_scale(float largest, float levels) noexcept {
  float const scale = largest / levels;
  if (scale * levels < largest)
    return std::nextafter(scale, std::numeric_limits<float>::infinity());
  return std::isinf(scale * levels) ? std::nextafter(scale, 0.0F) : scale;
}

void write_code(std::span<std::byte> codes, int bits, std::uint64_t i, int code) noexcept {
  if (bits == 8) {
    codes[i] = static_cast<std::byte>(code);
  } else if (i % 2 == 0) {
    codes[i / 2] = static_cast<std::byte>(code & 0xf);
  } else {
    codes[i / 2] |= static_cast<std::byte>((code & 0xf) << 4);
  }
}

int read_code(std::span<std::byte const> codes, int bits, std::uint64_t i) noexcept {
  if (bits == 8) return std::to_integer<std::int8_t>(codes[i]);
  int const nibble = (std::to_integer<int>(codes[i / 2]) >> (i % 2 * 4)) & 0xf;
  return nibble < 8 ? nibble : nibble - 16;
}

}  // namespace

void quantize(ExecContext const&, std::span<float const> corrected, int bits,
              std::uint64_t block_elements, Rounding rounding, RoundingKey const& key,
              std::span<std::byte> codes, std::span<float> scales,
              std::span<float> residual) noexcept {
  float const levels = num_levels(bits);
  for (std::uint64_t block = 0; block < scales.size(); ++block) {
    std::uint64_t const begin = block * block_elements;
    std::uint64_t const end = begin + std::min(block_elements, corrected.size() - begin);
    float largest = 0.0F;
    for (std::uint64_t i = begin; i < end; ++i)
      largest = std::max(largest, std::fabs(corrected[i]));
    float const scale = scales[block] = block_scale(largest, levels);
    for (std::uint64_t i = begin; i < end; ++i) {
      float const c = corrected[i];
      float const level = scale == 0.0F ? 0.0F : c / scale;
      float const rounded = rounding == Rounding::nearest
                                ? std::rint(level)
                                : std::floor(level + rounding_uniform(key, i));
      int const q = static_cast<int>(std::fmax(-levels, std::fmin(levels, rounded)));
      write_code(codes, bits, i, q);
      if (!residual.empty()) residual[i] = c - static_cast<float>(q) * scale;
    }
  }
}

Flags quantize_fused(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                     int bits, std::uint64_t block_elements, Rounding rounding,
                     RoundingKey const& key, std::span<std::byte> codes,
                     std::span<float> scales) noexcept {
  Flags const flags = ref::compensate(ctx, gradient, residual);
  ref::quantize(ctx, residual.out, bits, block_elements, rounding, key, codes, scales,
                residual.out);
  return flags;
}

void dequantize_add(ExecContext const&, std::span<std::byte const> codes, std::byte const* scales,
                    int bits, std::uint64_t block_elements, float weight,
                    std::span<float> accumulator) noexcept {
  for (std::uint64_t i = 0; i < accumulator.size(); ++i) {
    float scale;
    std::memcpy(&scale, scales + i / block_elements * sizeof scale, sizeof scale);
    float const decoded = static_cast<float>(read_code(codes, bits, i)) * scale;
    float const product = weight * decoded;
    accumulator[i] = canonical(accumulator[i] + product);
  }
}

}  // namespace gradsieve::kernels::ref
