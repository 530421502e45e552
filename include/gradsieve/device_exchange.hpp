// SPDX-License-Identifier: Apache-2.0
// Exchanges between ranks whose payloads are on devices, in the order of a stream.
#pragma once

#include <cstdint>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve {

/// What a Hook with backend=cuda runs on. All memory is device memory of the stream's device and
/// stays as it is until the stream has passed the call. All ranks make the same calls in the same
/// order, with the same sizes, which are 64-bit. A call returns what can be known at once; what
/// goes wrong later is found by check(). A rank that cannot take part calls Transport::abort().
class DeviceExchange {
 public:
  virtual ~DeviceExchange() = default;

  /// True if a call returns before the exchange has taken place and may be captured in a CUDA
  /// graph. False: the call waits for the stream and for the other ranks, up to the transport's
  /// deadline.
  [[nodiscard]] virtual bool is_asynchronous() const noexcept = 0;

  /// received, cut into world_size equal parts: part r ← `own` of rank r, the own one included.
  virtual Status all_gather(Stream stream, ConstBytes own, Bytes received) noexcept = 0;
  /// Both cut into world_size equal parts: part r of received ← part `rank` of what rank r brings.
  virtual Status all_to_all(Stream stream, ConstBytes own, Bytes received) noexcept = 0;
  /// sum ← Σ over ranks of `own`, elementwise; the same bits on all ranks. f32 or f64, and sum may
  /// be `own`.
  virtual Status all_reduce(Stream stream, ConstTensorView own, TensorView sum) noexcept = 0;
  /// *least ← the smallest of the ranks' *own.
  virtual Status all_reduce_min(Stream stream, std::uint64_t const* own,
                                std::uint64_t* least) noexcept = 0;

  /// ok, or what has gone wrong with a call that was made before. Never waits.
  virtual Status check() noexcept = 0;
};

}  // namespace gradsieve
