// SPDX-License-Identifier: Apache-2.0
// A communicator of NCCL that one thread may abort while another is inside it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
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
/// has to connect are there. A thread, the keeper, aborts the communicator when that takes too
/// long. It is also the one who ends it: NCCL does not return from that before all CUDA graphs that
/// captured the communicator are destroyed, and the keeper can be left behind.
class NcclCommunicator {
 public:
  enum class Ownership : std::uint8_t { borrowed, owned };

  /// Throws Error if the communicator does not answer.
  NcclCommunicator(NcclApi const& api, ncclComm_t handle, Ownership ownership,
                   std::chrono::milliseconds deadline);
  /// Waits for the end of the communicator, for as long as a call may last.
  ~NcclCommunicator();
  NcclCommunicator(NcclCommunicator const&) = delete;
  NcclCommunicator& operator=(NcclCommunicator const&) = delete;

  [[nodiscard]] NcclApi const& api() const noexcept { return shared_->api; }
  [[nodiscard]] ncclComm_t handle() const noexcept { return shared_->handle; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int world_size() const noexcept { return world_size_; }
  [[nodiscard]] int device() const noexcept { return shared_->device; }

  /// call(handle), with the communicator's device current.
  template <typename Call>
  Status run(Call const& call) noexcept {
    Visit const visit(*shared_, true);
    if (!visit.entered()) return aborted_status();
    DeviceScope const scope(device());
    if (!scope.ok())
      return {Code::device_error, "the communicator's device cannot be made current"};
    return settle(call(handle()));
  }

  /// How long a call may last from now on.
  void bound_calls_by(std::chrono::milliseconds deadline) noexcept;

  /// ok, or what became of calls made before. Never waits.
  Status check() noexcept;
  /// Ends what is under way with an error, unless the communicator is borrowed; every later call is
  /// Code::aborted.
  void abort() noexcept;

 private:
  /// What the keeper needs, also when it is left behind.
  struct Shared {
    NcclApi api;
    ncclComm_t handle = nullptr;
    int device = 0;

    std::mutex mutex;  ///< of what follows; never held inside the library
    std::condition_variable changed;
    std::chrono::milliseconds deadline{0};
    int visitors = 0;
    int watched_visitors = 0;
    Clock::time_point call_began = {};
    bool aborted = false;
    bool late = false;  ///< it was the keeper who aborted
    bool ending = false;
    bool closed = false;  ///< the handle is no more
  };

  /// A thread inside the library: the handle lives as long as it is there.
  class Visit {
   public:
    Visit(Shared& shared, bool watched) noexcept;
    ~Visit();
    Visit(Visit const&) = delete;
    Visit& operator=(Visit const&) = delete;
    [[nodiscard]] bool entered() const noexcept { return entered_; }

   private:
    Shared& shared_;
    bool watched_;
    bool entered_;
  };

  static void keep(Shared& shared) noexcept;
  [[nodiscard]] Status settle(ncclResult_t result) noexcept;
  [[nodiscard]] ncclResult_t outcome_by_now() noexcept;
  [[nodiscard]] Deadline call_deadline() noexcept;
  [[nodiscard]] bool is_aborted() noexcept;
  [[nodiscard]] Status aborted_status() noexcept;

  std::shared_ptr<Shared> shared_;
  int rank_ = 0;
  int world_size_ = 1;
  std::thread keeper_;  ///< of an owned communicator
};

}  // namespace gradsieve
