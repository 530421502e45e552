// SPDX-License-Identifier: Apache-2.0
// What value codecs make of many small pieces on a device: a table, and one launch each way.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "gradsieve/compressor.hpp"

#include "core/device_stream.hpp"
#include "kernels/many_ops.hpp"

namespace gradsieve {

/// A copy in device memory. Waits until it is there. Throws Error.
template <typename T>
Buffer uploaded(std::vector<T> const& values, MemoryResource& memory, Stream stream) {
  Buffer buffer(values.size() * sizeof(T), memory, stream);
  Status status = copy_in_order(stream, values.data(), buffer.data(), buffer.num_bytes());
  if (status.ok()) status = synchronize(stream);  // the values go
  if (!status.ok()) throw Error(status.code(), status.message());
  return buffer;
}

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

/// Sign planes; the segments have their scales_begin.
[[nodiscard]] std::shared_ptr<Batch const> make_sign_batch(ExecContext const& ctx,
                                                           std::vector<kernels::Segment> segments,
                                                           std::uint64_t block_elements,
                                                           MemoryResource& memory);

}  // namespace gradsieve
