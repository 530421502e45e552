// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_communicator.hpp"

#include <algorithm>
#include <string>

#include "core/log.hpp"

namespace gradsieve {

namespace {

/// A thread that is about to leave the library gets this long before it is aborted under.
constexpr std::chrono::milliseconds kLeaveGrace{100};
/// abort() sees NCCL through, unless a CUDA graph keeps it.
constexpr std::chrono::milliseconds kAbortPatience{1000};
constexpr std::chrono::microseconds kPollPause{20};
constexpr std::chrono::milliseconds kShortestWatch{1};

void require(NcclApi const& api, ncclResult_t result, char const* call) {
  if (went_well(result)) return;
  throw Error(status_of(result).code(), std::string("make_nccl_transport: ") + call +
                                            " failed: " + api.get_error_string(result));
}

}  // namespace

DeviceScope::DeviceScope(int device) noexcept {
  int current = 0;
  if (cudaGetDevice(&current) != cudaSuccess) return;
  ok_ = current == device || cudaSetDevice(device) == cudaSuccess;
  if (ok_ && current != device) previous_ = current;
}

DeviceScope::~DeviceScope() {
  if (previous_ >= 0) static_cast<void>(cudaSetDevice(previous_));
}

NcclCommunicator::NcclCommunicator(NcclApi const& api, ncclComm_t handle, Ownership ownership,
                                   std::chrono::milliseconds deadline)
    : shared_(std::make_shared<Shared>()) {
  shared_->api = api;
  shared_->handle = handle;
  shared_->deadline = deadline;
  require(api, api.comm_count(handle, &world_size_), "ncclCommCount");
  require(api, api.comm_user_rank(handle, &rank_), "ncclCommUserRank");
  require(api, api.comm_cu_device(handle, &shared_->device), "ncclCommCuDevice");
  if (ownership == Ownership::owned) keeper_ = std::thread([shared = shared_] { keep(*shared); });
}

NcclCommunicator::~NcclCommunicator() {
  if (!keeper_.joinable()) return;
  bool const healthy = check().ok();
  std::unique_lock lock(shared_->mutex);
  shared_->ending = true;
  // Ranks that have failed would never come to a common end.
  if (!healthy) shared_->aborted = true;
  shared_->changed.notify_all();
  bool const closed =
      shared_->changed.wait_for(lock, shared_->deadline, [this] { return shared_->closed; });
  lock.unlock();
  if (closed) {
    keeper_.join();
  } else {
    log(LogLevel::warn, "COMM", "NCCL keeps a communicator: does a CUDA graph still use it?");
    keeper_.detach();
  }
}

// One thread ends the communicator, whatever the reason, and does so once.
void NcclCommunicator::keep(Shared& shared) noexcept {
  std::unique_lock lock(shared.mutex);
  while (!shared.ending && !shared.aborted) {
    shared.changed.wait_for(lock, std::max(shared.deadline / 8, kShortestWatch));
    bool const stuck =
        shared.watched_visitors > 0 && Clock::now() - shared.call_began >= shared.deadline;
    shared.late = stuck && !shared.aborted;
    shared.aborted = shared.aborted || stuck;
  }
  // A visitor who does not leave is stuck inside: that is what ncclCommAbort from another thread is
  // for.
  shared.changed.wait_for(lock, kLeaveGrace, [&] { return shared.visitors == 0; });
  auto const close = shared.aborted ? shared.api.comm_abort : shared.api.comm_destroy;
  lock.unlock();
  {
    DeviceScope const scope(shared.device);
    static_cast<void>(close(shared.handle));
  }
  lock.lock();
  shared.closed = true;
  shared.changed.notify_all();
}

void NcclCommunicator::abort() noexcept {
  std::unique_lock lock(shared_->mutex);
  shared_->aborted = true;
  shared_->changed.notify_all();
  if (!keeper_.joinable()) return;
  shared_->changed.wait_for(lock, kAbortPatience, [this] { return shared_->closed; });
}

void NcclCommunicator::bound_calls_by(std::chrono::milliseconds deadline) noexcept {
  std::lock_guard const lock(shared_->mutex);
  shared_->deadline = deadline;
  shared_->changed.notify_all();
}

NcclCommunicator::Visit::Visit(Shared& shared, bool watched) noexcept
    : shared_(shared), watched_(watched) {
  std::lock_guard const lock(shared.mutex);
  entered_ = !shared.aborted;
  if (!entered_) return;
  ++shared.visitors;
  if (watched && shared.watched_visitors++ == 0) shared.call_began = Clock::now();
}

NcclCommunicator::Visit::~Visit() {
  if (!entered_) return;
  std::lock_guard const lock(shared_.mutex);
  if (watched_) --shared_.watched_visitors;
  if (--shared_.visitors == 0 && shared_.aborted) shared_.changed.notify_all();
}

Status NcclCommunicator::aborted_status() noexcept {
  std::lock_guard const lock(shared_->mutex);
  if (shared_->late) return {Code::timeout, "NCCL: the other ranks did not come in time"};
  return {Code::aborted, "this rank has aborted"};
}

Deadline NcclCommunicator::call_deadline() noexcept {
  std::lock_guard const lock(shared_->mutex);
  return Clock::now() + shared_->deadline;
}

bool NcclCommunicator::is_aborted() noexcept {
  std::lock_guard const lock(shared_->mutex);
  return shared_->aborted;
}

/// A non-blocking communicator of somebody else's may still be at it.
Status NcclCommunicator::settle(ncclResult_t result) noexcept {
  Deadline const deadline = result == ncclInProgress ? call_deadline() : Deadline();
  while (result == ncclInProgress && !is_aborted()) {
    if (Clock::now() >= deadline)
      return {Code::timeout, "NCCL: the other ranks did not come in time"};
    std::this_thread::sleep_for(kPollPause);
    result = outcome_by_now();
  }
  if (is_aborted()) return aborted_status();
  if (!went_well(result))
    log(LogLevel::warn, "COMM", "NCCL: %s: %s", api().get_error_string(result),
        api().get_last_error(handle()));
  return status_of(result);
}

ncclResult_t NcclCommunicator::outcome_by_now() noexcept {
  ncclResult_t outcome = ncclSuccess;
  ncclResult_t const asked = api().comm_get_async_error(handle(), &outcome);
  return asked == ncclSuccess ? outcome : asked;
}

Status NcclCommunicator::check() noexcept {
  Visit const visit(*shared_, false);
  return visit.entered() ? status_of(outcome_by_now()) : aborted_status();
}

}  // namespace gradsieve
