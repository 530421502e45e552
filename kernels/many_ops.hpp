// SPDX-License-Identifier: Apache-2.0
// Kernels for many small tensors in one call: on a device one launch. Each tensor is a segment of a
// table that is made at plan time; what changes from step to step is beside it. The result is that
// of the kernel in ops.hpp for each segment in turn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/philox.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels {

/// One tensor. A kernel reads the members that it needs.
struct Segment {
  void const* gradient = nullptr;      ///< of the call's dtype
  float const* residual_in = nullptr;  ///< null: zeros
  float* residual_out = nullptr;       ///< may be residual_in
  float* accumulator = nullptr;
  std::byte* codes = nullptr;
  float* scales = nullptr;
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

/// compensate() of gradient, residual_in and residual_out. The runs are those of block size 1.
using CompensateManyFn = Flags(ExecContext const&, SegmentTable const&, DType,
                               StepValue<float> carry) noexcept;
/// quantize_fused() of gradient, residual_in and residual_out to codes and scales; the random
/// numbers are those of key, `step` and first_element.
using QuantizeManyFn = Flags(ExecContext const&, SegmentTable const&, DType, StepValue<float> carry,
                             int bits, std::uint64_t block_elements, Rounding,
                             StepValue<std::uint64_t> step) noexcept;
/// dequantize_add() of codes and scales to accumulator. The runs are those of the same block size.
using DequantizeAddManyFn = void(ExecContext const&, SegmentTable const&, int bits,
                                 std::uint64_t block_elements, float weight) noexcept;

#define GRADSIEVE_KERNELS_DECLARED_HERE \
  CompensateManyFn compensate_many;     \
  QuantizeManyFn quantize_many;         \
  DequantizeAddManyFn dequantize_add_many

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
