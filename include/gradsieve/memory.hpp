// SPDX-License-Identifier: Apache-2.0
// Memory: where it comes from, who owns it, and the arena a step works in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve {

/// Source of all memory that the library holds. Called at plan time only; thread-safe.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;

  /// Returns `num_bytes` bytes aligned to 256, zero-filled; throws Error(out_of_memory).
  [[nodiscard]] virtual void* allocate(std::size_t num_bytes, Stream stream) = 0;
  virtual void deallocate(void* pointer, std::size_t num_bytes, Stream stream) noexcept = 0;
  [[nodiscard]] virtual Device device() const noexcept { return Device::host; }
};

/// The default: host memory, on huge pages where a block is 2 MiB or larger.
[[nodiscard]] MemoryResource& host_memory() noexcept;

/// Memory of the current CUDA device, in the order of the stream that it is asked for on, and host
/// memory that the device reads and writes directly. Both throw Error(not_built) in a build without
/// CUDA, when used and not before.
[[nodiscard]] MemoryResource& device_memory() noexcept;
[[nodiscard]] MemoryResource& pinned_memory() noexcept;

/// Owns a block of memory from a MemoryResource. Movable, not copyable.
class Buffer {
 public:
  Buffer() noexcept = default;
  Buffer(std::size_t num_bytes, MemoryResource& resource, Stream stream = {});
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));
    swap(taken);
    return *this;
  }
  Buffer(Buffer const&) = delete;
  Buffer& operator=(Buffer const&) = delete;
  ~Buffer();

  [[nodiscard]] std::size_t num_bytes() const noexcept { return num_bytes_; }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] Bytes bytes() const noexcept { return {data_, num_bytes_}; }
  template <typename T>
  [[nodiscard]] std::span<T> as() const noexcept {
    return {reinterpret_cast<T*>(data_), num_bytes_ / sizeof(T)};
  }
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    std::swap(resource_, other.resource_);
    std::swap(stream_, other.stream_);
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
  MemoryResource* resource_ = nullptr;
  Stream stream_;
};

/// Bump arena over memory handed in. Pieces are aligned to 256 bytes; under AddressSanitizer a
/// poisoned red zone lies between them. Running out is a planning mistake: take() then returns an
/// empty span, and callers answer with Code::internal.
class Workspace {
 public:
  static constexpr std::size_t kAlignment = 256;

  Workspace() noexcept = default;
  explicit Workspace(Bytes memory) noexcept : memory_(memory) {}

  /// Room for `count` elements, uninitialised; empty if `count` is 0 or the arena is exhausted.
  template <typename T>
  [[nodiscard]] std::span<T> take(std::size_t count) noexcept {
    std::byte* const piece = count > SIZE_MAX / sizeof(T) ? nullptr : take_bytes(count * sizeof(T));
    return piece == nullptr ? std::span<T>{} : std::span<T>{reinterpret_cast<T*>(piece), count};
  }
  void reset() noexcept { rewind(0); }

  /// Position, for nested use: everything taken after mark() is given back by rewind().
  [[nodiscard]] std::size_t mark() const noexcept { return used_; }
  void rewind(std::size_t position) noexcept;

  [[nodiscard]] std::size_t capacity_bytes() const noexcept { return memory_.size(); }
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_; }

  /// What take() uses up for a piece of `num_bytes`: for sums of workspace_bytes().
  [[nodiscard]] static constexpr std::size_t padded(std::size_t num_bytes) noexcept {
    return num_bytes == 0 ? 0 : (num_bytes + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
  }

 private:
  [[nodiscard]] std::byte* take_bytes(std::size_t num_bytes) noexcept;

  Bytes memory_;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
};

/// Gives back on leaving a scope what was taken in it.
class WorkspaceScope {
 public:
  explicit WorkspaceScope(Workspace& workspace) noexcept
      : workspace_(workspace), mark_(workspace.mark()) {}
  ~WorkspaceScope() { workspace_.rewind(mark_); }
  WorkspaceScope(WorkspaceScope const&) = delete;
  WorkspaceScope& operator=(WorkspaceScope const&) = delete;

 private:
  Workspace& workspace_;
  std::size_t mark_;
};

}  // namespace gradsieve
