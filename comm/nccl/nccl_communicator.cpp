// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_communicator.hpp"

#include <algorithm>
#include <string>

#include "core/log.hpp"

namespace gradsieve {

namespace {

/// A thread that is about to leave the library gets this long before abort() aborts under it.
constexpr std::chrono::milliseconds kLeaveGrace{100};
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
    : api_(api), handle_(handle), ownership_(ownership), deadline_(deadline) {
  require(api_, api_.comm_count(handle_, &world_size_), "ncclCommCount");
  require(api_, api_.comm_user_rank(handle_, &rank_), "ncclCommUserRank");
  require(api_, api_.comm_cu_device(handle_, &device_), "ncclCommCuDevice");
  if (ownership_ == Ownership::owned) watchdog_ = std::thread([this] { watch(); });
}

NcclCommunicator::~NcclCommunicator() {
  if (ownership_ == Ownership::borrowed) return;
  if (!finalize()) abort();
  {
    std::lock_guard const lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  watchdog_.join();
  DeviceScope const scope(device_);
  if (!aborted_) static_cast<void>(api_.comm_destroy(handle_));
}

// Ranks that have failed would never come to the end.
bool NcclCommunicator::finalize() noexcept {
  if (!check().ok()) return false;
  return run([this](ncclComm_t handle) { return api_.comm_finalize(handle); }).ok();
}

void NcclCommunicator::bound_calls_by(std::chrono::milliseconds deadline) noexcept {
  {
    std::lock_guard const lock(mutex_);
    deadline_ = deadline;
  }
  changed_.notify_all();
}

bool NcclCommunicator::enter(bool watched) noexcept {
  std::lock_guard const lock(mutex_);
  if (aborted_) return false;
  ++visitors_;
  if (watched && watched_visitors_++ == 0) call_began_ = Clock::now();
  return true;
}

void NcclCommunicator::leave(bool watched) noexcept {
  std::lock_guard const lock(mutex_);
  if (watched) --watched_visitors_;
  if (--visitors_ == 0 && aborted_) changed_.notify_all();
}

Status NcclCommunicator::aborted_status() noexcept {
  std::lock_guard const lock(mutex_);
  if (late_) return {Code::timeout, "NCCL: the other ranks did not come in time"};
  return {Code::aborted, "this rank has aborted"};
}

Deadline NcclCommunicator::call_deadline() noexcept {
  std::lock_guard const lock(mutex_);
  return Clock::now() + deadline_;
}

bool NcclCommunicator::is_aborted() noexcept {
  std::lock_guard const lock(mutex_);
  return aborted_;
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
    log(LogLevel::warn, "COMM", "NCCL: %s: %s", api_.get_error_string(result),
        api_.get_last_error(handle_));
  return status_of(result);
}

ncclResult_t NcclCommunicator::outcome_by_now() noexcept {
  ncclResult_t outcome = ncclSuccess;
  ncclResult_t const asked = api_.comm_get_async_error(handle_, &outcome);
  return asked == ncclSuccess ? outcome : asked;
}

Status NcclCommunicator::check() noexcept {
  Visit const visit(*this, false);
  return visit.entered() ? status_of(outcome_by_now()) : aborted_status();
}

void NcclCommunicator::abort() noexcept {
  std::unique_lock lock(mutex_);
  abort(lock);
}

// A visitor who does not leave is stuck inside: that is what ncclCommAbort from another thread is
// for.
void NcclCommunicator::abort(std::unique_lock<std::mutex>& lock) noexcept {
  if (aborted_) return;
  aborted_ = true;
  if (ownership_ == Ownership::borrowed) return;
  changed_.wait_for(lock, kLeaveGrace, [this] { return visitors_ == 0; });
  lock.unlock();
  {
    DeviceScope const scope(device_);
    static_cast<void>(api_.comm_abort(handle_));
  }
  lock.lock();
}

void NcclCommunicator::watch() noexcept {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    changed_.wait_for(lock, std::max(deadline_ / 8, kShortestWatch));
    bool const stuck = watched_visitors_ > 0 && Clock::now() - call_began_ >= deadline_;
    if (!stuck || aborted_) continue;
    late_ = true;
    abort(lock);
  }
}

}  // namespace gradsieve
