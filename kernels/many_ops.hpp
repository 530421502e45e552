// SPDX-License-Identifier: Apache-2.0
// Kernels for many small tensors in one call: on a device one launch. Each tensor is a segment of a
// table that is made at plan time and holds places, not addresses: the arrays may be others in each
// call. The result is that of the kernels in ops.hpp for each segment in turn.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/philox.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels {

/// One tensor: where its parts begin in the arrays of a call. A kernel reads the members it needs.
struct Segment {
  std::uint64_t in_gradient = 0;   ///< elements in front of it
  std::uint64_t in_residual = 0;   ///< elements in front of it
  std::uint64_t codes_begin = 0;   ///< bytes in front of its codes, or of its values
  std::uint64_t scales_begin = 0;  ///< bytes in front of its scales
  std::uint64_t num_elements = 0;
  PhiloxKey key = {};
  std::uint64_t first_element = 0;  ///< of the piece within its tensor, as in RoundingKey
  std::uint64_t first_run = 0;      ///< set by plan_runs()
};

/// Segments and, for each run (what one thread block takes at a time), the segment that it is of.
/// Both arrays lie where the data lies.
struct SegmentTable {
  std::span<Segment const> segments;
  std::span<std::uint32_t const> segment_of_run;
};

/// What a body of `sign` with both planes begins with.
inline constexpr std::array<std::byte, 4> kSignHeader = {std::byte{1}};

/// Gradient and residual in, bodies and residual out: the arrays that segments of an encode lie in.
struct EncodedArrays {
  ConstTensorView gradient;
  float const* residual_in = nullptr;  ///< null: zeros
  float* residual_out = nullptr;       ///< may be residual_in
  StepValue<float> carry = 1.0F;
  std::byte* bodies = nullptr;
  /// The gradient (f32) is c already: it is not compensated, and nothing of the residual is read.
  bool is_corrected = false;
};

/// Bodies in, sums out. A segment's sum lies at in_residual, or at in_gradient.
struct DecodedArrays {
  std::byte const* bodies = nullptr;
  float* accumulator = nullptr;
  bool lies_as_residual = false;
  float weight = 1.0F;
  bool is_first = false;  ///< of a sum: it begins with zeros, whatever lies there
};

/// Elements of a run: as many whole blocks as a thread block holds, or a block, and of odd blocks
/// an even number.
[[nodiscard]] constexpr std::uint64_t run_elements(std::uint64_t block_elements) noexcept {
  constexpr std::uint64_t kHeld = 4096;
  std::uint64_t const unit = block_elements % 2 == 0 ? block_elements : 2 * block_elements;
  return unit >= kHeld ? unit : kHeld / unit * unit;
}

/// Numbers the runs of the segments, for quantizers of this block size: segment_of_run. Block 1 for
/// kernels that have no blocks.
[[nodiscard]] std::vector<std::uint32_t> plan_runs(std::span<Segment> segments,
                                                   std::uint64_t block_elements);

/// compensate(), then v_i ← c_i as `type`: by narrow() with saturation, or by store_bf16() with the
/// random numbers of key, `step` and first_element; residual.out_i ← c_i − v_i. The values begin at
/// codes_begin. Runs of block size 1.
using EncodeValuesManyFn = Flags(ExecContext const&, SegmentTable const&, EncodedArrays const&,
                                 DType type, Rounding, StepValue<std::uint64_t> step) noexcept;
/// add_scaled() of those values. Runs of block size 1.
using AddValuesManyFn = void(ExecContext const&, SegmentTable const&, DecodedArrays const&,
                             DType type) noexcept;
/// quantize_fused() to codes and scales; the random numbers are those of key, `step` and
/// first_element.
using QuantizeManyFn = Flags(ExecContext const&, SegmentTable const&, EncodedArrays const&,
                             int bits, std::uint64_t block_elements, Rounding,
                             StepValue<std::uint64_t> step) noexcept;
/// dequantize_add() of codes and scales. The runs are those of the same block size. Before that
/// check_scales() of the scales and check_clear() of the bits between codes and scales: false if
/// one of them is wrong.
using DequantizeAddManyFn = bool(ExecContext const&, SegmentTable const&, DecodedArrays const&,
                                 int bits, std::uint64_t block_elements) noexcept;
/// compensate() and sign(): at codes_begin the header of a body of `sign`, behind it both planes.
/// block_elements is a multiple of 8; runs of that block size.
using SignManyFn = Flags(ExecContext const&, SegmentTable const&, EncodedArrays const&,
                         std::uint64_t block_elements) noexcept;
/// sign_add() of those bodies; false if one of them is not one.
using SignAddManyFn = bool(ExecContext const&, SegmentTable const&, DecodedArrays const&,
                           std::uint64_t block_elements) noexcept;

#define GRADSIEVE_KERNELS_DECLARED_HERE    \
  EncodeValuesManyFn encode_values_many;   \
  AddValuesManyFn add_values_many;         \
  QuantizeManyFn quantize_many;            \
  DequantizeAddManyFn dequantize_add_many; \
  SignManyFn sign_many;                    \
  SignAddManyFn sign_add_many

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
