// SPDX-License-Identifier: Apache-2.0
// What a hook writes down for people and tools while it runs: a timeline in Chrome's trace format
// and a line of metrics per step. Without the variables that ask for it there is no Observer, and a
// range costs one comparison.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "gradsieve/transport.hpp"

#include "comm/stopwatch.hpp"

namespace gradsieve {

/// A file that is written line by line: allocates nothing after it is open, and a disk that is full
/// costs lines, never a step.
class LineFile {
 public:
  /// Throws Error(io_error) naming the variable that asked for the file.
  LineFile(std::string path, char const* variable);
  ~LineFile();
  LineFile(LineFile const&) = delete;
  LineFile& operator=(LineFile const&) = delete;

  [[gnu::format(printf, 2, 3)]] void write(char const* format, ...) noexcept;
  void flush() noexcept;

 private:
  static constexpr std::size_t kBufferBytes = 1 << 16;
  int file_ = -1;
  std::size_t used_ = 0;
  std::unique_ptr<char[]> buffer_;
};

/// One step of a rank. Seconds and bytes are sums over buckets.
struct StepRecord {
  std::uint64_t step = 0;
  bool committed = false;
  bool found_nonfinite = false;
  char const* result = "ok";
  std::uint64_t dense_bytes = 0;
  std::uint64_t wire_bytes = 0;
  std::uint64_t kept_elements = 0;
  std::uint64_t overflowed_elements = 0;
  Spent encode_spent;
  Spent decode_spent;
  double exchange_seconds = 0.0;
  double residual_norm = 0.0;  ///< of the residual as the step's outcome leaves it
};

/// Thread-safe.
class Observer {
 public:
  /// What GRADSIEVE_TIMELINE and GRADSIEVE_METRICS ask for, file names with %r, %h and %p; null if
  /// neither is set.
  [[nodiscard]] static std::unique_ptr<Observer> from_environment(int rank);

  [[nodiscard]] bool wants_metrics() const noexcept { return metrics_ != nullptr; }

  /// Tracks are numbered by bucket: two buckets may be under way at once, and viewers show one
  /// range at a time on a track.
  void range(char const* name, std::uint32_t track, Clock::time_point begin, Clock::time_point end,
             std::uint64_t num_bytes) noexcept;
  void step(StepRecord const& record) noexcept;

 private:
  explicit Observer(int rank) : rank_(rank) {}

  std::mutex mutex_;
  int rank_;
  std::unique_ptr<LineFile> timeline_;
  std::unique_ptr<LineFile> metrics_;
};

/// A named stretch of time: on the timeline if there is one, and in NVTX's domain "gradsieve" where
/// it was built in and a profiler listens.
class TraceRange {
 public:
  TraceRange(Observer* observer, char const* name, std::uint32_t track) noexcept;
  ~TraceRange();
  TraceRange(TraceRange const&) = delete;
  TraceRange& operator=(TraceRange const&) = delete;

  void set_bytes(std::uint64_t num_bytes) noexcept { num_bytes_ = num_bytes; }

 private:
  Observer* observer_;
  char const* name_;
  std::uint32_t track_;
  std::uint64_t num_bytes_ = 0;
  Clock::time_point begin_;
};

}  // namespace gradsieve
