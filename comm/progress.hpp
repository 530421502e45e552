// SPDX-License-Identifier: Apache-2.0
// Drives exchanges beside the caller, in the order they were submitted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "core/function_ref.hpp"

namespace gradsieve {

/// A queue of numbered tasks. With a thread of its own it works at once; without, in drain() on the
/// caller's thread (MPI below MPI_THREAD_MULTIPLE). Allocates at construction only.
class Progress {
 public:
  using Work = void (*)(void* context, std::uint32_t task);

  Progress(bool own_thread, std::uint32_t num_tasks, Work work, void* context);
  ~Progress();
  Progress(Progress const&) = delete;
  Progress& operator=(Progress const&) = delete;

  /// Each task may be in the queue once.
  void submit(std::uint32_t task) noexcept;
  /// Returns when `task` is done, or all are (kAll).
  static constexpr std::uint32_t kAll = 0xffffffffu;
  void drain(std::uint32_t task) noexcept;

 private:
  void run() noexcept;
  void work_on(std::uint32_t task, std::unique_lock<std::mutex>& lock) noexcept;
  [[nodiscard]] bool finished(std::uint32_t task) const noexcept;

  std::mutex mutex_;
  std::condition_variable submitted_;
  std::condition_variable completed_;
  std::vector<std::uint32_t> queue_;  ///< ring of capacity num_tasks
  std::vector<char> pending_;
  std::uint32_t head_ = 0;
  std::uint32_t size_ = 0;
  std::uint32_t num_pending_ = 0;
  bool stopping_ = false;
  Work work_;
  void* context_;
  std::thread thread_;
};

}  // namespace gradsieve
