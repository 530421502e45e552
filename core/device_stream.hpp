// SPDX-License-Identifier: Apache-2.0
// Streams, events and copies of the CUDA runtime, for those who must not see its headers. In a
// build without CUDA making one throws Error(not_built).
#pragma once

#include <cstddef>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve {

/// A stream of the device that `beside` belongs to, which waits for no other stream by itself.
/// Making one throws Error(unsupported) where the kernels of this build do not run on the device.
class OwnStream {
 public:
  explicit OwnStream(Stream beside);
  ~OwnStream();
  OwnStream(OwnStream const&) = delete;
  OwnStream& operator=(OwnStream const&) = delete;

  [[nodiscard]] Stream get() const noexcept { return stream_; }

 private:
  Stream stream_;
};

/// A point in a stream's work.
class StreamEvent {
 public:
  StreamEvent();
  ~StreamEvent();
  StreamEvent(StreamEvent&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  StreamEvent(StreamEvent const&) = delete;
  StreamEvent& operator=(StreamEvent const&) = delete;

  Status record(Stream stream) noexcept;
  /// Later work of the stream waits for the point that was recorded last.
  Status hold(Stream stream) noexcept;
  /// The host waits until the stream has passed it; the status of the work before.
  Status wait() const noexcept;

 private:
  void* handle_ = nullptr;
};

/// Between host and device in either direction, or within a device. Host memory is pinned, or the
/// call may wait.
Status copy_in_order(Stream stream, void const* from, void* to, std::size_t num_bytes) noexcept;
/// Waits for all work of the stream.
Status synchronize(Stream stream) noexcept;
/// True while the stream's work is being recorded for a graph.
[[nodiscard]] bool is_capturing(Stream stream) noexcept;

}  // namespace gradsieve
