// SPDX-License-Identifier: Apache-2.0
// The list of kernels. Each is declared once as a function type, with its formula; the namespaces
// `ref`, `cpu` and `cuda` define it with that signature, and the function in `kernels` itself
// picks one by ctx.backend. `ref` is the specification: the others give the same bits, for every
// instruction set, thread count and alignment.
//
// On `cuda` all views, ctx.words and ctx.workspace are device memory, work is put on ctx.stream,
// and the host reads nothing back. What a call returns or leaves in a view is then what the host
// can know:
//   Flags      0; the kernel itself ORs what it saw into ctx.words->flags
//   bool       true; where ref returns false the kernel raises kStepCorrupt
//   counts     upper bounds; the true ones go to SparseView::counts
//   results    sums and the like are written through a pointer, to where the data lives
//   failures   a launch that fails is kept in *ctx.device_error, and the following ones do nothing
// What may change from step to step is a StepValue: on cuda its word is read by the kernel. An
// index that is not below the universe is skipped there: nothing is stored out of bounds, whatever
// came.
//
// Everywhere: f32 arithmetic in the order written, no contraction to fma, no flush to zero.
// Gradients are f32, f16 or bf16 and are converted to f32 exactly. Kernels know no compressor.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "gradsieve/context.hpp"
#include "gradsieve/selection.hpp"
#include "gradsieve/vocabulary.hpp"
#include "gradsieve/wire.hpp"

#include "core/philox.hpp"

namespace gradsieve::kernels {

/// What a pass over a gradient saw: 0 or kStepNonFinite.
using Flags = std::uint32_t;

/// Indices whose number may be known only where they live. The host sees `room`, an upper bound;
/// the first *count of it are valid, all of it where count is null.
struct IndexSpan {
  std::span<std::uint32_t const> room;
  std::uint64_t const* count = nullptr;

  constexpr IndexSpan() noexcept = default;
  template <typename Range>
  requires std::convertible_to<Range const&, std::span<std::uint32_t const>>
  constexpr IndexSpan(Range const& indices,  // NOLINT: indices are an IndexSpan
                      std::uint64_t const* num_valid = nullptr) noexcept
      : room(indices), count(num_valid) {}
  /// Read by ref and cpu.
  [[nodiscard]] constexpr std::span<std::uint32_t const> valid() const noexcept {
    return count == nullptr ? room : room.first(static_cast<std::size_t>(*count));
  }
};

enum class Rounding : std::uint8_t { nearest, stochastic };
enum class BlockNorm : std::uint8_t { l2, linf };

// --- feedback
// -------------------------------------------------------------------------------------

/// corrected ← c with c_i = g_i + carry·e_i if that sum is finite, else carry·e_i (flag raised).
/// residual.in may be empty: e = 0. Writes residual.out. One pass: 8 bytes read, 4 written.
using CompensateFn = Flags(ExecContext const&, ConstTensorView gradient,
                           ResidualView residual) noexcept;

/// residual_i ← residual_i − decoded_i.
using RetainFn = void(ExecContext const&, std::span<float const> decoded,
                      std::span<float> residual) noexcept;

/// out_i ← bf16(x_i), stochastically: adds 16 random bits below the kept mantissa and truncates.
/// Exact where x_i has a bf16; never rounds a finite number to infinity (saturates).
using StoreBf16Fn = void(ExecContext const&, std::span<float const> values, RoundingKey const&,
                         std::span<BFloat16> out) noexcept;

// --- elementwise
// ----------------------------------------------------------------------------------

/// out_i ← f32(x_i), exact; a NaN becomes the canonical one.
using WidenFn = void(ExecContext const&, ConstTensorView values, std::span<float> out) noexcept;

/// out_i ← x_i rounded to out.dtype (f32 copies, f16, bf16: to nearest, ties to even; a NaN becomes
/// the canonical one). `saturate`: a finite x beyond the largest finite number becomes that.
using NarrowFn = void(ExecContext const&, std::span<float const> values, bool saturate,
                      TensorView out) noexcept;

/// accumulator_i ← accumulator_i + weight·x_i (product rounded, then sum). x is f32, f16 or bf16.
/// Here and in dequantize_add and sign_add a sum that is NaN becomes the canonical one.
using AddScaledFn = void(ExecContext const&, ConstTensorView values, StepValue<float> weight,
                         std::span<float> accumulator) noexcept;

/// x_i ← factor·x_i.
using ScaleFn = void(ExecContext const&, StepValue<float> factor, std::span<float> values) noexcept;

/// *sum ← Σ x_i² in double: blocks of 4096 summed left to right in 8 interleaved lanes (lane j
/// takes the elements ≡ j mod 8; lanes are added pairwise: (0+1)+(2+3), (4+5)+(6+7)), block sums
/// added in order.
using SumSquaresFn = void(ExecContext const&, std::span<float const> values, double* sum) noexcept;
/// Bytes of workspace that SumSquaresFn needs on cuda.
[[nodiscard]] std::size_t sum_squares_workspace_bytes(std::uint64_t num_elements) noexcept;

// --- selection
// ------------------------------------------------------------------------------------ All: c as in
// CompensateFn; selection ← the chosen (index, c) in ascending order of index; residual.out ← c,
// with +0 where chosen. Magnitudes are compared as |c|; +0 and −0 are equal.

/// The k largest |c|; ties go to the lower index. k ≤ n, k ≤ capacity. Exactly k are chosen.
using TopkFn = Flags(ExecContext const&, ConstTensorView gradient, ResidualView residual,
                     StepValue<std::uint64_t> k, SparseView& selection) noexcept;
/// Bytes of workspace that TopkFn needs.
[[nodiscard]] std::size_t topk_workspace_bytes(std::uint64_t num_elements,
                                               std::uint64_t k) noexcept;

/// All |c| ≥ threshold (threshold > 0), the first selection.indices.size() of them by index; the
/// rest stay in the residual and are counted in num_overflowed.
using ThresholdFn = Flags(ExecContext const&, ConstTensorView gradient, ResidualView residual,
                          StepValue<float> threshold, SparseView& selection) noexcept;
/// Bytes of workspace that ThresholdFn needs on cuda.
[[nodiscard]] std::size_t threshold_workspace_bytes(std::uint64_t num_elements) noexcept;

/// The k blocks of `block_elements` with the largest norm (L2: Σ c² in double, lanes and order of
/// SumSquaresFn within the block; Linf: max |c|); ties go to the lower block. The last block may be
/// short. selection.granularity = block_elements; values of a block stand together.
using BlockTopkFn = Flags(ExecContext const&, ConstTensorView gradient, ResidualView residual,
                          std::uint64_t block_elements, BlockNorm, StepValue<std::uint64_t> k,
                          SparseView& selection) noexcept;
[[nodiscard]] std::size_t block_topk_workspace_bytes(std::uint64_t num_elements,
                                                     std::uint64_t block_elements,
                                                     std::uint64_t k) noexcept;

/// One draw in each of k equal strata: stratum j is [⌊j·n/k⌋, ⌊(j+1)·n/k⌋), and its index is
/// start + ⌊bits·size / 2^32⌋ with bits = philox(key, j / 4, step)[j mod 4].
/// Ascending, distinct. indices.size() is k ≤ n.
using RandomkFn = void(ExecContext const&, PhiloxKey const&, StepValue<std::uint64_t> step,
                       std::uint64_t num_elements, std::span<std::uint32_t> indices) noexcept;

/// values ← x at the selection's indices (blocks of `granularity`), x ← +0 there.
using TakeFn = void(ExecContext const&, IndexSpan indices, std::uint64_t granularity,
                    std::span<float> x, std::span<float> values) noexcept;
/// CompensateFn, then TakeFn of residual.out: of a set that is known before c is.
using CompensateTakeFn = Flags(ExecContext const&, ConstTensorView gradient, ResidualView residual,
                               IndexSpan indices, std::uint64_t granularity,
                               std::span<float> values) noexcept;

/// accumulator[index] ← accumulator[index] + weight·value. Indices were checked by the caller.
using ScatterAddFn = void(ExecContext const&, IndexSpan indices, std::uint64_t granularity,
                          std::span<float const> values, float weight,
                          std::span<float> accumulator) noexcept;

/// True if the indices ascend strictly and the last is below `universe`.
using CheckIndicesFn = bool(ExecContext const&, IndexSpan indices, std::uint64_t universe) noexcept;

// --- quantizers
// ----------------------------------------------------------------------------------- Blocks of
// `block_elements` share one scale; the last block may be short.

/// Symmetric block quantizer, bits = 8 or 4, L = 2^(bits−1) − 1:
///
///   scale = max|c| / L, raised to the next float if scale·L < max|c|, lowered to the previous one
///           if scale·L is infinite      (0 for a zero block)
///   level = c / scale;   q = rint(level) to even, or floor(level + u) (RoundingKey);   |q| ≤ L
///   ĉ = q·scale with q an integer: there is no ĉ = −0
///
/// c is finite, as compensate leaves it. Blocks are counted in the flat array, not per row.
/// codes: 8 bits: one signed byte per element; 4 bits: element 2i in the low nibble, 2i+1 in the
/// high one, two's complement, a missing last one is 0. residual (may be empty) ← c − ĉ.
using QuantizeFn = void(ExecContext const&, std::span<float const> corrected, int bits,
                        std::uint64_t block_elements, Rounding, RoundingKey const&,
                        std::span<std::byte> codes, std::span<float> scales,
                        std::span<float> residual) noexcept;
/// The same on g and e in one pass: c as in CompensateFn, residual.out ← c − ĉ.
using QuantizeFusedFn = Flags(ExecContext const&, ConstTensorView gradient, ResidualView residual,
                              int bits, std::uint64_t block_elements, Rounding, RoundingKey const&,
                              std::span<std::byte> codes, std::span<float> scales) noexcept;
/// accumulator_i ← accumulator_i + weight·(q_i·scale). `scales` is read unaligned.
using DequantizeAddFn = void(ExecContext const&, std::span<std::byte const> codes,
                             std::byte const* scales, int bits, std::uint64_t block_elements,
                             float weight, std::span<float> accumulator) noexcept;

/// Sign with one scale per block and a true zero:
///
///   scale = (Σ |c_i| in double, lanes as SumSquaresFn) / (number of c_i ≠ 0), rounded to f32; 0
///   for a zero block ĉ_i = scale if c_i > 0, −scale if c_i < 0, 0 if c_i = ±0
///
/// signs: bit i (least significant first) is 1 for c_i < 0; zeros: bit i is 1 for c_i = ±0.
/// *any_zero ← 1 if any element is zero (then the zero plane has to travel), else it stays.
/// residual (may be empty, or corrected itself) ← c − ĉ.
using SignFn = void(ExecContext const&, std::span<float const> corrected,
                    std::uint64_t block_elements, std::span<std::byte> signs,
                    std::span<std::byte> zeros, std::span<float> scales, std::span<float> residual,
                    std::uint32_t* any_zero) noexcept;
/// The same on g and e in one pass: c as in CompensateFn, residual.out ← c − ĉ.
using SignFusedFn = Flags(ExecContext const&, ConstTensorView gradient, ResidualView residual,
                          std::uint64_t block_elements, std::span<std::byte> signs,
                          std::span<std::byte> zeros, std::span<float> scales,
                          std::uint32_t* any_zero) noexcept;
/// accumulator_i ← accumulator_i + weight·ĉ_i; `zeros` is null if none are.
using SignAddFn = void(ExecContext const&, std::byte const* signs, std::byte const* zeros,
                       std::byte const* scales, std::uint64_t block_elements, float weight,
                       std::span<float> accumulator) noexcept;

// --- index coding
// --------------------------------------------------------------------------------- Layouts:
// docs/wire_format.md, section "Index forms".

using BitmapEncodeFn = void(ExecContext const&, IndexSpan indices, std::uint64_t universe,
                            std::span<std::byte> out) noexcept;
/// False if the bitmap does not hold exactly indices.size() bits, or one at or above `universe`.
using BitmapDecodeFn = bool(ExecContext const&, std::span<std::byte const> bitmap,
                            std::uint64_t universe, std::span<std::uint32_t> indices) noexcept;

[[nodiscard]] std::uint32_t elias_fano_low_bits(std::uint64_t universe,
                                                std::uint64_t num_indices) noexcept;
[[nodiscard]] std::size_t elias_fano_bytes(std::uint64_t universe,
                                           std::uint64_t num_indices) noexcept;
using EliasFanoEncodeFn = void(ExecContext const&, IndexSpan indices, std::uint64_t universe,
                               std::span<std::byte> out) noexcept;
/// False if the bytes are not the code of indices.size() ascending indices below `universe`.
using EliasFanoDecodeFn = bool(ExecContext const&, std::span<std::byte const> code,
                               std::uint64_t universe, std::span<std::uint32_t> indices) noexcept;
/// Bytes of workspace that a decoder of `code_bytes` needs on cuda.
[[nodiscard]] std::size_t index_decode_workspace_bytes(std::size_t code_bytes) noexcept;

// --- bodies
// ---------------------------------------------------------------------------------------

/// All bytes ← 0.
using ClearFn = void(ExecContext const&, std::span<std::byte> bytes) noexcept;
/// to ← from; both are where the data lives, of one size, and do not overlap.
using CopyFn = void(ExecContext const&, std::span<std::byte const> from,
                    std::span<std::byte> to) noexcept;
/// Adds a selection to the step's kept_elements and overflowed_elements (and raises
/// kStepOverflow). On cuda also fills what is left of its room: indices ← universe, universe + 1,
/// …, which stand for nothing, values ← 0; with that it is as long as the host can know.
using CountSelectionFn = void(ExecContext const&, SparseView const& selection,
                              std::uint64_t universe) noexcept;
/// At most kMaxFields bytes that the host knows, to where the data lives; and true if they are
/// there.
inline constexpr std::size_t kMaxFields = 64;
using PutFieldsFn = void(ExecContext const&, std::span<std::byte const> fields,
                         std::byte* at) noexcept;
using CheckFieldsFn = bool(ExecContext const&, std::span<std::byte const> fields,
                           std::byte const* at) noexcept;
/// True if all are scales: finite and not negative. Read unaligned.
using CheckScalesFn = bool(ExecContext const&, std::span<std::byte const> scales) noexcept;
/// True if no bit of `bytes` is set that is also set in `mask`; an empty mask has all bits. The
/// `skipped_bits` lowest of the first byte are not looked at.
using CheckClearFn = bool(ExecContext const&, std::span<std::byte const> bytes,
                          std::span<std::byte const> mask, unsigned skipped_bits) noexcept;

// --- payloads
// ------------------------------------------------------------------------------------

/// The first 64 bytes of `payload` ← header with the step of ctx.words, body_bytes, and the flags
/// kStepNonFinite and kStepOverflow of ctx.words as PayloadFlag bits. Where ctx.words has
/// kStepCorrupt, status is corrupt_payload (unless it said something else) and body_bytes is 0.
using WriteHeaderFn = void(ExecContext const&, PayloadHeader const& header,
                           StepValue<std::uint64_t> body_bytes,
                           std::span<std::byte> payload) noexcept;

// --- the three places of each kernel
// --------------------------------------------------------------

#define GRADSIEVE_KERNELS_DECLARED_HERE \
  CompensateFn compensate;              \
  RetainFn retain;                      \
  StoreBf16Fn store_bf16;               \
  WidenFn widen;                        \
  NarrowFn narrow;                      \
  AddScaledFn add_scaled;               \
  ScaleFn scale;                        \
  SumSquaresFn sum_squares;             \
  TopkFn topk;                          \
  ThresholdFn threshold;                \
  BlockTopkFn block_topk;               \
  RandomkFn randomk;                    \
  TakeFn take;                          \
  CompensateTakeFn compensate_take;     \
  ScatterAddFn scatter_add;             \
  CheckIndicesFn check_indices;         \
  QuantizeFn quantize;                  \
  QuantizeFusedFn quantize_fused;       \
  DequantizeAddFn dequantize_add;       \
  SignFn sign;                          \
  SignFusedFn sign_fused;               \
  SignAddFn sign_add;                   \
  BitmapEncodeFn bitmap_encode;         \
  BitmapDecodeFn bitmap_decode;         \
  EliasFanoEncodeFn elias_fano_encode;  \
  EliasFanoDecodeFn elias_fano_decode;  \
  ClearFn clear;                        \
  CopyFn copy;                          \
  CountSelectionFn count_selection;     \
  PutFieldsFn put_fields;               \
  CheckFieldsFn check_fields;           \
  CheckScalesFn check_scales;           \
  CheckClearFn check_clear;             \
  WriteHeaderFn write_header

namespace ref {
GRADSIEVE_KERNELS_DECLARED_HERE;
}
namespace cpu {
GRADSIEVE_KERNELS_DECLARED_HERE;
}
namespace cuda {
GRADSIEVE_KERNELS_DECLARED_HERE;
}
GRADSIEVE_KERNELS_DECLARED_HERE;
#undef GRADSIEVE_KERNELS_DECLARED_HERE

}  // namespace gradsieve::kernels
