// SPDX-License-Identifier: Apache-2.0
// kernels::NAME runs ref::NAME, cpu::NAME or cuda::NAME, as the context says.
#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "kernels/many_ops.hpp"
#include "kernels/many_sparse_ops.hpp"
#include "kernels/ops.hpp"
#include "kernels/select_layout.hpp"
#include "kernels/workspace_bytes.hpp"

namespace gradsieve::kernels {
namespace {

constexpr Status kNotBuilt = {Code::not_built, "this build has no CUDA kernels"};

#ifdef GRADSIEVE_HAVE_CUDA
#define GRADSIEVE_BACKENDS(name) \
  Backends { ref::name, cpu::name, cuda::name }
#else
#define GRADSIEVE_BACKENDS(name) \
  Backends { ref::name, cpu::name, nullptr }
#endif

template <typename Function>
struct Backends {
  Function* ref;
  Function* cpu;
  Function* cuda;
};
template <typename Function>
Backends(Function*, Function*, Function*) -> Backends<Function>;
template <typename Function>
Backends(Function*, Function*, std::nullptr_t) -> Backends<Function>;

template <typename Function, typename... Arguments>
auto run(Backends<Function> backends, ExecContext const& ctx, Arguments&&... arguments) noexcept {
  if (ctx.backend == Backend::cuda) {
    if (backends.cuda != nullptr) {
      return backends.cuda(ctx, std::forward<Arguments>(arguments)...);
    }
    // A context with this backend cannot be made by the library then; but one can write it down.
    if (ctx.device_error != nullptr) *ctx.device_error = kNotBuilt;
    using Result = std::invoke_result_t<Function*, ExecContext const&, Arguments...>;
    return Result();
  }
  Function* const kernel = ctx.backend == Backend::ref ? backends.ref : backends.cpu;
  return kernel(ctx, std::forward<Arguments>(arguments)...);
}

}  // namespace

// --- workspace -----------------------------------------------------------------------------------

#ifdef GRADSIEVE_HAVE_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

std::size_t topk_workspace_bytes(std::uint64_t num_elements, std::uint64_t k) noexcept {
  return std::max(cpu::topk_bytes(num_elements, k),
                  kHasCuda ? cuda::topk_bytes(num_elements, k) : 0);
}

std::size_t threshold_workspace_bytes(std::uint64_t num_elements) noexcept {
  return kHasCuda ? cuda::select_bytes(num_elements) : 0;
}

std::size_t block_topk_workspace_bytes(std::uint64_t num_elements, std::uint64_t block_elements,
                                       std::uint64_t k) noexcept {
  return std::max(cpu::block_topk_bytes(num_elements, block_elements, k),
                  kHasCuda ? cuda::block_topk_bytes(num_elements, block_elements) : 0);
}

std::size_t index_decode_workspace_bytes(std::size_t code_bytes) noexcept {
  return kHasCuda ? cuda::select_bytes(code_bytes) : 0;
}

// --- feedback ------------------------------------------------------------------------------------

Flags compensate(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual) noexcept {
  return run(GRADSIEVE_BACKENDS(compensate), ctx, gradient, residual);
}

void retain(ExecContext const& ctx, std::span<float const> decoded,
            std::span<float> residual) noexcept {
  run(GRADSIEVE_BACKENDS(retain), ctx, decoded, residual);
}

void store_bf16(ExecContext const& ctx, std::span<float const> values, RoundingKey const& key,
                std::span<BFloat16> out) noexcept {
  run(GRADSIEVE_BACKENDS(store_bf16), ctx, values, key, out);
}

// --- elementwise ---------------------------------------------------------------------------------

void widen(ExecContext const& ctx, ConstTensorView values, std::span<float> out) noexcept {
  run(GRADSIEVE_BACKENDS(widen), ctx, values, out);
}

void narrow(ExecContext const& ctx, std::span<float const> values, bool saturate,
            TensorView out) noexcept {
  run(GRADSIEVE_BACKENDS(narrow), ctx, values, saturate, out);
}

void add_scaled(ExecContext const& ctx, ConstTensorView values, StepValue<float> weight,
                std::span<float> accumulator) noexcept {
  run(GRADSIEVE_BACKENDS(add_scaled), ctx, values, weight, accumulator);
}

void scale(ExecContext const& ctx, StepValue<float> factor, std::span<float> values) noexcept {
  run(GRADSIEVE_BACKENDS(scale), ctx, factor, values);
}

void sum_squares(ExecContext const& ctx, std::span<float const> values, double* sum) noexcept {
  run(GRADSIEVE_BACKENDS(sum_squares), ctx, values, sum);
}

// --- selection -----------------------------------------------------------------------------------

Flags topk(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
           StepValue<std::uint64_t> k, SparseView& selection) noexcept {
  return run(GRADSIEVE_BACKENDS(topk), ctx, gradient, residual, k, selection);
}

Flags threshold(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                StepValue<float> threshold, SparseView& selection) noexcept {
  return run(GRADSIEVE_BACKENDS(threshold), ctx, gradient, residual, threshold, selection);
}

Flags block_topk(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                 std::uint64_t block_elements, BlockNorm norm, StepValue<std::uint64_t> k,
                 SparseView& selection) noexcept {
  return run(GRADSIEVE_BACKENDS(block_topk), ctx, gradient, residual, block_elements, norm, k,
             selection);
}

void randomk(ExecContext const& ctx, PhiloxKey const& key, StepValue<std::uint64_t> step,
             std::uint64_t num_elements, std::span<std::uint32_t> indices) noexcept {
  run(GRADSIEVE_BACKENDS(randomk), ctx, key, step, num_elements, indices);
}

void take(ExecContext const& ctx, IndexSpan indices, std::uint64_t granularity, std::span<float> x,
          std::span<float> values) noexcept {
  run(GRADSIEVE_BACKENDS(take), ctx, indices, granularity, x, values);
}

Flags compensate_take(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                      IndexSpan indices, std::uint64_t granularity,
                      std::span<float> values) noexcept {
  return run(GRADSIEVE_BACKENDS(compensate_take), ctx, gradient, residual, indices, granularity,
             values);
}

void scatter_add(ExecContext const& ctx, IndexSpan indices, std::uint64_t granularity,
                 std::span<float const> values, float weight,
                 std::span<float> accumulator) noexcept {
  run(GRADSIEVE_BACKENDS(scatter_add), ctx, indices, granularity, values, weight, accumulator);
}

bool check_indices(ExecContext const& ctx, IndexSpan indices, std::uint64_t universe) noexcept {
  return run(GRADSIEVE_BACKENDS(check_indices), ctx, indices, universe);
}

// --- quantizers ----------------------------------------------------------------------------------

void quantize(ExecContext const& ctx, std::span<float const> corrected, int bits,
              std::uint64_t block_elements, Rounding rounding, RoundingKey const& key,
              std::span<std::byte> codes, std::span<float> scales,
              std::span<float> residual) noexcept {
  run(GRADSIEVE_BACKENDS(quantize), ctx, corrected, bits, block_elements, rounding, key, codes,
      scales, residual);
}

Flags quantize_fused(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                     int bits, std::uint64_t block_elements, Rounding rounding,
                     RoundingKey const& key, std::span<std::byte> codes,
                     std::span<float> scales) noexcept {
  return run(GRADSIEVE_BACKENDS(quantize_fused), ctx, gradient, residual, bits, block_elements,
             rounding, key, codes, scales);
}

void dequantize_add(ExecContext const& ctx, std::span<std::byte const> codes,
                    std::byte const* scales, int bits, std::uint64_t block_elements, float weight,
                    std::span<float> accumulator) noexcept {
  run(GRADSIEVE_BACKENDS(dequantize_add), ctx, codes, scales, bits, block_elements, weight,
      accumulator);
}

void sign(ExecContext const& ctx, std::span<float const> corrected, std::uint64_t block_elements,
          std::span<std::byte> signs, std::span<std::byte> zeros, std::span<float> scales,
          std::span<float> residual, std::uint32_t* any_zero) noexcept {
  run(GRADSIEVE_BACKENDS(sign), ctx, corrected, block_elements, signs, zeros, scales, residual,
      any_zero);
}

Flags sign_fused(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                 std::uint64_t block_elements, std::span<std::byte> signs,
                 std::span<std::byte> zeros, std::span<float> scales,
                 std::uint32_t* any_zero) noexcept {
  return run(GRADSIEVE_BACKENDS(sign_fused), ctx, gradient, residual, block_elements, signs, zeros,
             scales, any_zero);
}

void sign_add(ExecContext const& ctx, std::byte const* signs, std::byte const* zeros,
              std::byte const* scales, std::uint64_t block_elements, float weight,
              std::span<float> accumulator) noexcept {
  run(GRADSIEVE_BACKENDS(sign_add), ctx, signs, zeros, scales, block_elements, weight, accumulator);
}

// --- index coding --------------------------------------------------------------------------------

void bitmap_encode(ExecContext const& ctx, IndexSpan indices, std::uint64_t universe,
                   std::span<std::byte> out) noexcept {
  run(GRADSIEVE_BACKENDS(bitmap_encode), ctx, indices, universe, out);
}

bool bitmap_decode(ExecContext const& ctx, std::span<std::byte const> bitmap,
                   std::uint64_t universe, std::span<std::uint32_t> indices) noexcept {
  return run(GRADSIEVE_BACKENDS(bitmap_decode), ctx, bitmap, universe, indices);
}

void elias_fano_encode(ExecContext const& ctx, IndexSpan indices, std::uint64_t universe,
                       std::span<std::byte> out) noexcept {
  run(GRADSIEVE_BACKENDS(elias_fano_encode), ctx, indices, universe, out);
}

bool elias_fano_decode(ExecContext const& ctx, std::span<std::byte const> code,
                       std::uint64_t universe, std::span<std::uint32_t> indices) noexcept {
  return run(GRADSIEVE_BACKENDS(elias_fano_decode), ctx, code, universe, indices);
}

// --- bodies --------------------------------------------------------------------------------------

void clear(ExecContext const& ctx, std::span<std::byte> bytes) noexcept {
  run(GRADSIEVE_BACKENDS(clear), ctx, bytes);
}

void copy(ExecContext const& ctx, std::span<std::byte const> from,
          std::span<std::byte> to) noexcept {
  run(GRADSIEVE_BACKENDS(copy), ctx, from, to);
}

void count_selection(ExecContext const& ctx, SparseView const& selection,
                     std::uint64_t universe) noexcept {
  run(GRADSIEVE_BACKENDS(count_selection), ctx, selection, universe);
}

void put_fields(ExecContext const& ctx, std::span<std::byte const> fields, std::byte* at) noexcept {
  run(GRADSIEVE_BACKENDS(put_fields), ctx, fields, at);
}

bool check_fields(ExecContext const& ctx, std::span<std::byte const> fields,
                  std::byte const* at) noexcept {
  return run(GRADSIEVE_BACKENDS(check_fields), ctx, fields, at);
}

bool check_scales(ExecContext const& ctx, std::span<std::byte const> scales) noexcept {
  return run(GRADSIEVE_BACKENDS(check_scales), ctx, scales);
}

bool check_clear(ExecContext const& ctx, std::span<std::byte const> bytes,
                 std::span<std::byte const> mask, unsigned skipped_bits) noexcept {
  return run(GRADSIEVE_BACKENDS(check_clear), ctx, bytes, mask, skipped_bits);
}

// --- payloads ------------------------------------------------------------------------------------

void write_header(ExecContext const& ctx, PayloadHeader const& header,
                  StepValue<std::uint64_t> body_bytes, std::span<std::byte> payload) noexcept {
  run(GRADSIEVE_BACKENDS(write_header), ctx, header, body_bytes, payload);
}

// --- many tensors --------------------------------------------------------------------------------

Flags encode_values_many(ExecContext const& ctx, SegmentTable const& table,
                         EncodedArrays const& arrays, DType type, Rounding rounding,
                         StepValue<std::uint64_t> step) noexcept {
  return run(GRADSIEVE_BACKENDS(encode_values_many), ctx, table, arrays, type, rounding, step);
}

void add_values_many(ExecContext const& ctx, SegmentTable const& table, DecodedArrays const& arrays,
                     DType type) noexcept {
  run(GRADSIEVE_BACKENDS(add_values_many), ctx, table, arrays, type);
}

Flags quantize_many(ExecContext const& ctx, SegmentTable const& table, EncodedArrays const& arrays,
                    int bits, std::uint64_t block_elements, Rounding rounding,
                    StepValue<std::uint64_t> step) noexcept {
  return run(GRADSIEVE_BACKENDS(quantize_many), ctx, table, arrays, bits, block_elements, rounding,
             step);
}

bool dequantize_add_many(ExecContext const& ctx, SegmentTable const& table,
                         DecodedArrays const& arrays, int bits,
                         std::uint64_t block_elements) noexcept {
  return run(GRADSIEVE_BACKENDS(dequantize_add_many), ctx, table, arrays, bits, block_elements);
}

Flags sign_many(ExecContext const& ctx, SegmentTable const& table, EncodedArrays const& arrays,
                std::uint64_t block_elements) noexcept {
  return run(GRADSIEVE_BACKENDS(sign_many), ctx, table, arrays, block_elements);
}

bool sign_add_many(ExecContext const& ctx, SegmentTable const& table, DecodedArrays const& arrays,
                   std::uint64_t block_elements) noexcept {
  return run(GRADSIEVE_BACKENDS(sign_add_many), ctx, table, arrays, block_elements);
}

Flags select_many(ExecContext const& ctx, std::span<SparseSegment const> segments, HeldRule rule,
                  EncodedArrays const& arrays, ChosenArrays const& chosen) noexcept {
  return run(GRADSIEVE_BACKENDS(select_many), ctx, segments, rule, arrays, chosen);
}

void put_back_many(ExecContext const& ctx, std::span<SparseSegment const> segments,
                   std::uint32_t const* indices, float const* lost, float* residual) noexcept {
  run(GRADSIEVE_BACKENDS(put_back_many), ctx, segments, indices, lost, residual);
}

bool sparse_add_many(ExecContext const& ctx, std::span<SparseSegment const> segments,
                     DecodedArrays const& arrays, float const* values) noexcept {
  return run(GRADSIEVE_BACKENDS(sparse_add_many), ctx, segments, arrays, values);
}

}  // namespace gradsieve::kernels
