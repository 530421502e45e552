// SPDX-License-Identifier: Apache-2.0
// kernels::NAME runs ref::NAME or cpu::NAME, as the context says.
#include <utility>

#include "kernels/ops.hpp"

namespace gradsieve::kernels {
namespace {

template <typename Function, typename... Arguments>
auto run(Function* ref_kernel, Function* cpu_kernel, ExecContext const& ctx,
         Arguments&&... arguments) noexcept {
  Function* const kernel = ctx.backend == Backend::ref ? ref_kernel : cpu_kernel;
  return kernel(ctx, std::forward<Arguments>(arguments)...);
}

}  // namespace

// --- feedback ------------------------------------------------------------------------------------

Flags compensate(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual) noexcept {
  return run(ref::compensate, cpu::compensate, ctx, gradient, residual);
}

void retain(ExecContext const& ctx, std::span<float const> decoded,
            std::span<float> residual) noexcept {
  run(ref::retain, cpu::retain, ctx, decoded, residual);
}

void store_bf16(ExecContext const& ctx, std::span<float const> values, RoundingKey const& key,
                std::span<BFloat16> out) noexcept {
  run(ref::store_bf16, cpu::store_bf16, ctx, values, key, out);
}

// --- elementwise ---------------------------------------------------------------------------------

void widen(ExecContext const& ctx, ConstTensorView values, std::span<float> out) noexcept {
  run(ref::widen, cpu::widen, ctx, values, out);
}

void narrow(ExecContext const& ctx, std::span<float const> values, bool saturate,
            TensorView out) noexcept {
  run(ref::narrow, cpu::narrow, ctx, values, saturate, out);
}

void add_scaled(ExecContext const& ctx, ConstTensorView values, float weight,
                std::span<float> accumulator) noexcept {
  run(ref::add_scaled, cpu::add_scaled, ctx, values, weight, accumulator);
}

void scale(ExecContext const& ctx, float factor, std::span<float> values) noexcept {
  run(ref::scale, cpu::scale, ctx, factor, values);
}

double sum_squares(ExecContext const& ctx, std::span<float const> values) noexcept {
  return run(ref::sum_squares, cpu::sum_squares, ctx, values);
}

// --- selection -----------------------------------------------------------------------------------

Flags topk(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual, std::uint64_t k,
           SparseView& selection) noexcept {
  return run(ref::topk, cpu::topk, ctx, gradient, residual, k, selection);
}

Flags threshold(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                float threshold, SparseView& selection) noexcept {
  return run(ref::threshold, cpu::threshold, ctx, gradient, residual, threshold, selection);
}

Flags block_topk(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                 std::uint64_t block_elements, BlockNorm norm, std::uint64_t k,
                 SparseView& selection) noexcept {
  return run(ref::block_topk, cpu::block_topk, ctx, gradient, residual, block_elements, norm, k,
             selection);
}

void randomk(ExecContext const& ctx, PhiloxKey const& key, std::uint64_t step,
             std::uint64_t num_elements, std::span<std::uint32_t> indices) noexcept {
  run(ref::randomk, cpu::randomk, ctx, key, step, num_elements, indices);
}

void take(ExecContext const& ctx, std::span<std::uint32_t const> indices, std::uint64_t granularity,
          std::span<float> x, std::span<float> values) noexcept {
  run(ref::take, cpu::take, ctx, indices, granularity, x, values);
}

void scatter_add(ExecContext const& ctx, std::span<std::uint32_t const> indices,
                 std::uint64_t granularity, std::span<float const> values, float weight,
                 std::span<float> accumulator) noexcept {
  run(ref::scatter_add, cpu::scatter_add, ctx, indices, granularity, values, weight, accumulator);
}

bool check_indices(ExecContext const& ctx, std::span<std::uint32_t const> indices,
                   std::uint64_t universe) noexcept {
  return run(ref::check_indices, cpu::check_indices, ctx, indices, universe);
}

// --- quantizers ----------------------------------------------------------------------------------

void quantize(ExecContext const& ctx, std::span<float const> corrected, int bits,
              std::uint64_t block_elements, Rounding rounding, RoundingKey const& key,
              std::span<std::byte> codes, std::span<float> scales,
              std::span<float> residual) noexcept {
  run(ref::quantize, cpu::quantize, ctx, corrected, bits, block_elements, rounding, key, codes,
      scales, residual);
}

Flags quantize_fused(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                     int bits, std::uint64_t block_elements, Rounding rounding,
                     RoundingKey const& key, std::span<std::byte> codes,
                     std::span<float> scales) noexcept {
  return run(ref::quantize_fused, cpu::quantize_fused, ctx, gradient, residual, bits,
             block_elements, rounding, key, codes, scales);
}

void dequantize_add(ExecContext const& ctx, std::span<std::byte const> codes,
                    std::byte const* scales, int bits, std::uint64_t block_elements, float weight,
                    std::span<float> accumulator) noexcept {
  run(ref::dequantize_add, cpu::dequantize_add, ctx, codes, scales, bits, block_elements, weight,
      accumulator);
}

bool sign(ExecContext const& ctx, std::span<float const> corrected, std::uint64_t block_elements,
          std::span<std::byte> signs, std::span<std::byte> zeros, std::span<float> scales,
          std::span<float> residual) noexcept {
  return run(ref::sign, cpu::sign, ctx, corrected, block_elements, signs, zeros, scales, residual);
}

void sign_add(ExecContext const& ctx, std::byte const* signs, std::byte const* zeros,
              std::byte const* scales, std::uint64_t block_elements, float weight,
              std::span<float> accumulator) noexcept {
  run(ref::sign_add, cpu::sign_add, ctx, signs, zeros, scales, block_elements, weight, accumulator);
}

// --- index coding --------------------------------------------------------------------------------

void bitmap_encode(ExecContext const& ctx, std::span<std::uint32_t const> indices,
                   std::uint64_t universe, std::span<std::byte> out) noexcept {
  run(ref::bitmap_encode, cpu::bitmap_encode, ctx, indices, universe, out);
}

bool bitmap_decode(ExecContext const& ctx, std::span<std::byte const> bitmap,
                   std::uint64_t universe, std::span<std::uint32_t> indices) noexcept {
  return run(ref::bitmap_decode, cpu::bitmap_decode, ctx, bitmap, universe, indices);
}

void elias_fano_encode(ExecContext const& ctx, std::span<std::uint32_t const> indices,
                       std::uint64_t universe, std::span<std::byte> out) noexcept {
  run(ref::elias_fano_encode, cpu::elias_fano_encode, ctx, indices, universe, out);
}

bool elias_fano_decode(ExecContext const& ctx, std::span<std::byte const> code,
                       std::uint64_t universe, std::span<std::uint32_t> indices) noexcept {
  return run(ref::elias_fano_decode, cpu::elias_fano_decode, ctx, code, universe, indices);
}

}  // namespace gradsieve::kernels
