// SPDX-License-Identifier: Apache-2.0
// A transport moves bytes between ranks. All exchanges are built on it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "gradsieve/context.hpp"
#include "gradsieve/vocabulary.hpp"

namespace gradsieve {

class DeviceExchange;

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// `data` carries payloads, `control` votes and roll calls; they never wait for each other.
enum class Channel : std::uint8_t { data = 0, control = 1 };

/// A started send or receive. Owned by the caller, who keeps it and its bytes until wait() has
/// returned for it.
struct Request {
  std::uint64_t num_bytes = 0;  ///< received length, valid once done
  bool done = false;
  Status status;
  /// The transport's own: the first kStorageBytes belong to the transport that moves the bytes, the
  /// rest to one wrapped around it. Nothing in here moves while the request is under way.
  static constexpr std::size_t kStorageBytes = 448;
  alignas(16) std::byte storage[kStorageBytes + 16] = {};
};

struct TransportTraits {
  std::string_view name;
  bool any_thread = true;  ///< may be driven by a progress thread (MPI: MPI_THREAD_MULTIPLE)
  bool device_memory = false;
  bool has_dense_all_reduce = false;
};

/// Counts of what was handed to send(): exact, not estimated.
struct TransportCounters {
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages_sent = 0;
};

/// Between two ranks, messages of one channel and tag arrive in the order sent. Lengths are 64-bit;
/// an implementation cuts what its library cannot count. Everything returns by its deadline.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int world_size() const noexcept = 0;
  [[nodiscard]] virtual TransportTraits traits() const noexcept = 0;

  /// Starts sending; `bytes` stays unchanged until the request is done.
  virtual Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
                      Request& request) noexcept = 0;
  /// Starts receiving at most `bytes.size()` bytes; request.num_bytes tells how many came. A longer
  /// message ends in Code::capacity_exceeded, never in a store beyond.
  virtual Status receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                         Request& request) noexcept = 0;
  /// Waits until the request is done or the deadline has passed; then the request is cancelled, its
  /// bytes are free again, and the result is Code::timeout. Returns request.status.
  virtual Status wait(Request& request, Deadline deadline) noexcept = 0;
  /// Makes every wait of this rank, now and later, return Code::aborted.
  virtual void abort() noexcept = 0;

  [[nodiscard]] virtual TransportCounters counters() const noexcept = 0;

  /// The library's own dense sum, in place, as the baseline to compare with (MPI_Allreduce).
  virtual Status dense_all_reduce(TensorView data) noexcept;

  /// Exchanges of device memory in stream order, if this transport has its own; null: a Hook with
  /// backend=cuda takes its payloads through pinned host memory and the calls above.
  [[nodiscard]] virtual DeviceExchange* device_exchange() noexcept { return nullptr; }
};

/// Ranks that are threads of one process. Keep the group alive as long as its transports are used.
class LocalGroup {
 public:
  explicit LocalGroup(int world_size);
  ~LocalGroup();
  LocalGroup(LocalGroup const&) = delete;
  LocalGroup& operator=(LocalGroup const&) = delete;

  [[nodiscard]] int world_size() const noexcept;
  [[nodiscard]] Transport& transport(int rank) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A slow network around any transport: a message occupies this rank's outgoing link for
/// latency + bytes / rate, one after another.
struct LinkLimit {
  double bits_per_second = 0.0;  ///< 0: unlimited
  std::chrono::nanoseconds latency{0};
};
[[nodiscard]] std::unique_ptr<Transport> make_limited(Transport& inner, LinkLimit limit);

}  // namespace gradsieve
