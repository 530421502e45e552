// SPDX-License-Identifier: Apache-2.0
#include "comm/limited_transport.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "gradsieve/wire.hpp"

namespace gradsieve {

namespace {

/// When the link has carried a request, in the part of its storage that wrappers own. A wrapper
/// around a wrapper keeps the later time.
void keep_time(Request& request, Clock::time_point time) noexcept {
  wire::store<Clock::rep>(request.storage + Request::kStorageBytes,
                          time.time_since_epoch().count());
}
Clock::time_point kept_time(Request const& request) noexcept {
  return Clock::time_point(
      Clock::duration(wire::load<Clock::rep>(request.storage + Request::kStorageBytes)));
}

}  // namespace

LimitedTransport::LimitedTransport(Transport& inner, LinkLimit limit)
    : inner_(inner), limit_(limit) {
  if (!std::isfinite(limit.bits_per_second) || limit.bits_per_second < 0.0)
    throw Error(Code::invalid_argument, "make_limited: bits_per_second is " +
                                            std::to_string(limit.bits_per_second) +
                                            "; expected a finite number ≥ 0 (0: unlimited)");
  if (limit.latency.count() < 0)
    throw Error(
        Code::invalid_argument,
        "make_limited: latency is " + std::to_string(limit.latency.count()) + " ns; expected ≥ 0");
}

TransportTraits LimitedTransport::traits() const noexcept {
  TransportTraits traits = inner_.traits();
  traits.name = "limited";
  return traits;
}

Clock::time_point LimitedTransport::book(double num_bytes, double num_messages) noexcept {
  double const transfer_s =
      limit_.bits_per_second > 0.0 ? num_bytes * 8.0 / limit_.bits_per_second : 0.0;
  double const latency_s = std::chrono::duration<double>(limit_.latency).count() * num_messages;
  // A year is as good as never, and does not overflow the clock.
  double const occupied_s = std::min(transfer_s + latency_s, 365.0 * 86400.0);
  auto const occupied =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(occupied_s));
  std::lock_guard const lock(mutex_);
  link_free_ = std::max(link_free_, Clock::now()) + occupied;
  return link_free_;
}

Status LimitedTransport::send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
                              Request& request) noexcept {
  keep_time(request, {});
  GRADSIEVE_RETURN_IF_ERROR(inner_.send(channel, peer, tag, bytes, request));
  if (peer != inner_.rank())
    keep_time(request, std::max(kept_time(request), book(static_cast<double>(bytes.size()), 1.0)));
  return {};
}

Status LimitedTransport::receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                                 Request& request) noexcept {
  keep_time(request, {});
  return inner_.receive(channel, peer, tag, bytes, request);
}

Status LimitedTransport::wait(Request& request, Deadline deadline) noexcept {
  GRADSIEVE_RETURN_IF_ERROR(inner_.wait(request, deadline));
  Clock::time_point const carried = kept_time(request);
  keep_time(request, {});
  request.status = sleep_until(std::min(carried, deadline));
  if (request.status.ok() && carried > deadline)
    request.status = {Code::timeout, "the limited link did not carry the message in time"};
  return request.status;
}

Status LimitedTransport::sleep_until(Clock::time_point time) noexcept {
  if (time <= Clock::now()) return {};
  std::unique_lock lock(mutex_);
  if (abort_called_.wait_until(lock, time, [&] { return aborted_; }))
    return {Code::aborted, "this rank has aborted"};
  return {};
}

void LimitedTransport::abort() noexcept {
  inner_.abort();
  std::lock_guard const lock(mutex_);
  aborted_ = true;
  abort_called_.notify_all();
}

Status LimitedTransport::dense_all_reduce(TensorView data) noexcept {
  GRADSIEVE_RETURN_IF_ERROR(inner_.dense_all_reduce(data));
  double const ranks = inner_.world_size();
  double const share = 2.0 * (ranks - 1.0) / ranks;
  std::this_thread::sleep_until(
      book(share * static_cast<double>(data.num_bytes()), 2.0 * (ranks - 1.0)));
  return {};
}

std::unique_ptr<Transport> make_limited(Transport& inner, LinkLimit limit) {
  return std::make_unique<LimitedTransport>(inner, limit);
}

}  // namespace gradsieve
