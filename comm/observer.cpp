// SPDX-License-Identifier: Apache-2.0
#include "comm/observer.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "core/nvtx.hpp"
#include "core/path_pattern.hpp"

namespace gradsieve {
namespace {

constexpr std::size_t kLongestLine = 1024;

double microseconds(Clock::time_point time) noexcept {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

std::unique_ptr<LineFile> file_of(char const* variable, int rank) {
  char const* const pattern = std::getenv(variable);
  if (pattern == nullptr || *pattern == '\0') return nullptr;
  return std::make_unique<LineFile>(expand_path(pattern, rank), variable);
}

}  // namespace

LineFile::LineFile(std::string path, char const* variable)
    : buffer_(std::make_unique<char[]>(kBufferBytes)) {
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ >= 0) return;
  throw Error(Code::io_error, std::string(variable) + "='" + path +
                                  "' cannot be written; expected a file name in a folder that "
                                  "exists, %r in it for the rank");
}

LineFile::~LineFile() {
  flush();
  ::close(file_);
}

void LineFile::write(char const* format, ...) noexcept {
  if (kBufferBytes - used_ < kLongestLine) flush();
  std::va_list arguments;
  va_start(arguments, format);
  int const length = std::vsnprintf(buffer_.get() + used_, kLongestLine, format, arguments);
  va_end(arguments);
  // A line that is cut would be no line of its format any more.
  if (length > 0 && static_cast<std::size_t>(length) < kLongestLine) {
    used_ += static_cast<std::size_t>(length);
  }
}

void LineFile::flush() noexcept {
  std::size_t done = 0;
  while (done < used_) {
    ssize_t const written = ::write(file_, buffer_.get() + done, used_ - done);
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
  used_ = 0;
}

std::unique_ptr<Observer> Observer::from_environment(int rank) {
  std::unique_ptr<LineFile> timeline = file_of("GRADSIEVE_TIMELINE", rank);
  std::unique_ptr<LineFile> metrics = file_of("GRADSIEVE_METRICS", rank);
  if (!timeline && !metrics) return nullptr;
  std::unique_ptr<Observer> observer(new Observer(rank));
  observer->timeline_ = std::move(timeline);
  observer->metrics_ = std::move(metrics);
  if (observer->timeline_) {
    // An array that is not closed is a valid trace: nothing is lost if the process is killed.
    observer->timeline_->write(
        "[{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
        rank, rank);
  }
  return observer;
}

void Observer::range(char const* name, std::uint32_t track, Clock::time_point begin,
                     Clock::time_point end, std::uint64_t num_bytes) noexcept {
  if (!timeline_) return;
  std::lock_guard const lock(mutex_);
  timeline_->write(
      ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,"
      "\"args\":{\"bytes\":%llu}}",
      name, rank_, track, microseconds(begin), microseconds(end) - microseconds(begin),
      static_cast<unsigned long long>(num_bytes));
}

void Observer::step(StepRecord const& record) noexcept {
  std::lock_guard const lock(mutex_);
  if (timeline_) {
    double const now = microseconds(Clock::now());
    timeline_->write(
        ",\n{\"name\":\"wire bytes\",\"ph\":\"C\",\"pid\":%d,\"ts\":%.3f,\"args\":{"
        "\"bytes\":%llu}}",
        rank_, now, static_cast<unsigned long long>(record.wire_bytes));
    timeline_->write(
        ",\n{\"name\":\"residual norm\",\"ph\":\"C\",\"pid\":%d,\"ts\":%.3f,\"args\":{"
        "\"norm\":%.9g}}",
        rank_, now, record.residual_norm);
    timeline_->flush();
  }
  if (!metrics_) return;
  metrics_->write(
      "{\"step\":%llu,\"rank\":%d,\"committed\":%s,\"found_nonfinite\":%s,\"result\":\"%s\","
      "\"dense_bytes\":%llu,\"wire_bytes\":%llu,\"kept_elements\":%llu,"
      "\"overflowed_elements\":%llu,\"t_encode\":%.9f,\"t_exchange\":%.9f,\"t_decode\":%.9f,"
      "\"t_encode_cpu\":%.9f,\"t_decode_cpu\":%.9f,\"residual_norm\":%.9g}\n",
      static_cast<unsigned long long>(record.step), rank_, record.committed ? "true" : "false",
      record.found_nonfinite ? "true" : "false", record.result,
      static_cast<unsigned long long>(record.dense_bytes),
      static_cast<unsigned long long>(record.wire_bytes),
      static_cast<unsigned long long>(record.kept_elements),
      static_cast<unsigned long long>(record.overflowed_elements), record.encode_spent.seconds,
      record.exchange_seconds, record.decode_spent.seconds, record.encode_spent.cpu_seconds,
      record.decode_spent.cpu_seconds, record.residual_norm);
  metrics_->flush();
}

TraceRange::TraceRange(Observer* observer, char const* name, std::uint32_t track) noexcept
    : observer_(observer), name_(name), track_(track) {
  nvtx_push(name, track);
  if (observer_ != nullptr) begin_ = Clock::now();
}

TraceRange::~TraceRange() {
  nvtx_pop();
  if (observer_ != nullptr) observer_->range(name_, track_, begin_, Clock::now(), num_bytes_);
}

}  // namespace gradsieve
