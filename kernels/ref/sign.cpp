// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/ops.hpp"
#include "kernels/ref/convert.hpp"

namespace gradsieve::kernels::ref {
namespace {

constexpr std::uint64_t kSumBlock = 4096;

double sum_magnitudes(std::span<float const> values) noexcept {
  double sum = 0;
  for (std::uint64_t begin = 0; begin < values.size(); begin += kSumBlock) {
    std::uint64_t const end = std::min<std::uint64_t>(begin + kSumBlock, values.size());
    double lane[8] = {};
    for (std::uint64_t i = begin; i < end; ++i) {
      lane[(i - begin) % 8] += std::fabs(static_cast<double>(values[i]));
    }
    sum +=
        ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  }
  return sum;
}

float block_scale(std::span<float const> block) noexcept {
  auto const num_nonzero = static_cast<std::uint64_t>(
      std::count_if(block.begin(), block.end(), [](float c) { return c != 0.0F; }));
  if (num_nonzero == 0) return 0.0F;
  return static_cast<float>(sum_magnitudes(block) / static_cast<double>(num_nonzero));
}

void write_bit(std::span<std::byte> bits, std::uint64_t i, bool bit) noexcept {
  if (i % 8 == 0) bits[i / 8] = std::byte{0};
  if (bit) bits[i / 8] |= std::byte{1} << (i % 8);
}

bool read_bit(std::byte const* bits, std::uint64_t i) noexcept {
  return (bits[i / 8] & std::byte{1} << (i % 8)) != std::byte{0};
}

}  // namespace

void sign(ExecContext const&, std::span<float const> corrected, std::uint64_t block_elements,
          std::span<std::byte> signs, std::span<std::byte> zeros, std::span<float> scales,
          std::span<float> residual, std::uint32_t* any_zero) noexcept {
  for (std::uint64_t block = 0; block < scales.size(); ++block) {
    std::uint64_t const begin = block * block_elements;
    std::uint64_t const end = begin + std::min(block_elements, corrected.size() - begin);
    float const scale = scales[block] = block_scale(corrected.subspan(begin, end - begin));
    for (std::uint64_t i = begin; i < end; ++i) {
      float const c = corrected[i];
      write_bit(signs, i, c < 0.0F);
      write_bit(zeros, i, c == 0.0F);
      if (c == 0.0F) *any_zero = 1;
      float const decoded = c > 0.0F ? scale : c < 0.0F ? -scale : 0.0F;
      if (!residual.empty()) residual[i] = c - decoded;
    }
  }
}

Flags sign_fused(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                 std::uint64_t block_elements, std::span<std::byte> signs,
                 std::span<std::byte> zeros, std::span<float> scales,
                 std::uint32_t* any_zero) noexcept {
  Flags const flags = ref::compensate(ctx, gradient, residual);
  ref::sign(ctx, residual.out, block_elements, signs, zeros, scales, residual.out, any_zero);
  return flags;
}

void sign_add(ExecContext const&, std::byte const* signs, std::byte const* zeros,
              std::byte const* scales, std::uint64_t block_elements, float weight,
              std::span<float> accumulator) noexcept {
  for (std::uint64_t i = 0; i < accumulator.size(); ++i) {
    float scale;
    std::memcpy(&scale, scales + i / block_elements * sizeof scale, sizeof scale);
    bool const is_zero = zeros != nullptr && read_bit(zeros, i);
    float const decoded = is_zero ? 0.0F : read_bit(signs, i) ? -scale : scale;
    float const product = weight * decoded;
    accumulator[i] = canonical(accumulator[i] + product);
  }
}

}  // namespace gradsieve::kernels::ref
