// SPDX-License-Identifier: Apache-2.0
// A communicator of NCCL that one thread may abort while another is inside it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "gradsieve/transport.hpp"

#include "comm/nccl/nccl_api.hpp"

namespace gradsieve {

/// Makes a device current, and the one before it again.
class DeviceScope {
 public:
  explicit DeviceScope(int device) noexcept;
  ~DeviceScope();
  DeviceScope(DeviceScope const&) = delete;
  DeviceScope& operator=(DeviceScope const&) = delete;

  [[nodiscard]] bool ok() const noexcept { return ok_; }

 private:
  int previous_ = -1;  ///< -1: nothing to restore
  bool ok_ = false;
};

/// Calls on it come one after another, in the same order on all ranks; check() and abort() come
/// from any thread at any time. A communicator of our own is a blocking one, because a
/// non-blocking one starts a thread for every call; so a call may stay in NCCL until the ranks it
/// has to connect are there. A watchdog aborts the communicator when that takes too long.
class NcclCommunicator {
 public:
  enum class Ownership : std::uint8_t { borrowed, owned };

  /// Throws Error if the communicator does not answer.
  NcclCommunicator(NcclApi const& api, ncclComm_t handle, Ownership ownership,
                   std::chrono::milliseconds deadline);
  ~NcclCommunicator();
  NcclCommunicator(NcclCommunicator const&) = delete;
  NcclCommunicator& operator=(NcclCommunicator const&) = delete;

  [[nodiscard]] NcclApi const& api() const noexcept { return api_; }
  [[nodiscard]] ncclComm_t handle() const noexcept { return handle_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int world_size() const noexcept { return world_size_; }
  [[nodiscard]] int device() const noexcept { return device_; }

  /// call(handle), with the communicator's device current.
  template <typename Call>
  Status run(Call const& call) noexcept {
    Visit const visit(*this, true);
    if (!visit.entered()) return aborted_status();
    DeviceScope const scope(device_);
    if (!scope.ok())
      return {Code::device_error, "the communicator's device cannot be made current"};
    return settle(call(handle_));
  }

  /// How long a call may last from now on.
  void bound_calls_by(std::chrono::milliseconds deadline) noexcept;

  /// ok, or what became of calls made before. Never waits.
  Status check() noexcept;
  /// Ends what is under way with an error, unless the communicator is borrowed; every later call is
  /// Code::aborted.
  void abort() noexcept;

 private:
  /// A thread inside the library: the handle lives as long as it is there.
  class Visit {
   public:
    Visit(NcclCommunicator& communicator, bool watched) noexcept
        : communicator_(communicator), watched_(watched), entered_(communicator.enter(watched)) {}
    ~Visit() {
      if (entered_) communicator_.leave(watched_);
    }
    Visit(Visit const&) = delete;
    Visit& operator=(Visit const&) = delete;
    [[nodiscard]] bool entered() const noexcept { return entered_; }

   private:
    NcclCommunicator& communicator_;
    bool watched_;
    bool entered_;
  };

  [[nodiscard]] bool enter(bool watched) noexcept;
  void leave(bool watched) noexcept;
  [[nodiscard]] Status settle(ncclResult_t result) noexcept;
  [[nodiscard]] ncclResult_t outcome_by_now() noexcept;
  [[nodiscard]] Deadline call_deadline() noexcept;
  [[nodiscard]] bool is_aborted() noexcept;
  [[nodiscard]] Status aborted_status() noexcept;
  void abort(std::unique_lock<std::mutex>& lock) noexcept;
  void watch() noexcept;
  [[nodiscard]] bool finalize() noexcept;

  NcclApi api_;
  ncclComm_t handle_;
  Ownership ownership_;
  int rank_ = 0;
  int world_size_ = 1;
  int device_ = 0;

  std::mutex mutex_;  ///< of what follows; never held inside the library
  std::condition_variable changed_;
  std::chrono::milliseconds deadline_;
  int visitors_ = 0;
  int watched_visitors_ = 0;
  Clock::time_point call_began_ = {};
  bool aborted_ = false;
  bool late_ = false;  ///< it was the watchdog who aborted
  bool ending_ = false;
  std::thread watchdog_;
};

}  // namespace gradsieve
