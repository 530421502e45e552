// SPDX-License-Identifier: Apache-2.0
// What value codecs make of many small pieces on a device: a table, and one launch each way.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "gradsieve/compressor.hpp"

#include "kernels/many_ops.hpp"

namespace gradsieve {

/// A table of segments in device memory.
class SegmentsOnDevice {
 public:
  /// Waits until it is there. Throws Error.
  SegmentsOnDevice(ExecContext const& ctx, std::vector<kernels::Segment> segments,
                   std::uint64_t block_elements, MemoryResource& memory);
  [[nodiscard]] kernels::SegmentTable table() const noexcept {
    return {segments_.as<kernels::Segment>(), segment_of_run_.as<std::uint32_t>()};
  }

 private:
  Buffer segments_;
  Buffer segment_of_run_;
};

/// Segments of pieces whose codes begin with their bodies; what else they have is the codec's.
[[nodiscard]] std::vector<kernels::Segment> segments_of(ExecContext const& ctx,
                                                        std::span<BatchPiece const> pieces);

/// Bodies that are the elements as f32, f16 or bf16.
[[nodiscard]] std::shared_ptr<Batch const> make_value_batch(ExecContext const& ctx,
                                                            std::span<BatchPiece const> pieces,
                                                            DType type, kernels::Rounding rounding,
                                                            MemoryResource& memory);

/// Block quantizers; the segments have their scales_begin.
[[nodiscard]] std::shared_ptr<Batch const> make_quantizer_batch(
    ExecContext const& ctx, std::vector<kernels::Segment> segments, int bits,
    std::uint64_t block_elements, kernels::Rounding rounding, MemoryResource& memory);

}  // namespace gradsieve
