// SPDX-License-Identifier: Apache-2.0
#include "comm/progress.hpp"

#include "core/fp_environment.hpp"

namespace gradsieve {

Progress::Progress(bool own_thread, std::uint32_t num_tasks, Work work, void* context)
    : queue_(num_tasks), pending_(num_tasks, 0), work_(work), context_(context) {
  if (own_thread && num_tasks > 0) thread_ = std::thread([this] { run(); });
}

Progress::~Progress() {
  {
    std::lock_guard const lock(mutex_);
    stopping_ = true;
  }
  submitted_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Progress::submit(std::uint32_t task) noexcept {
  {
    std::lock_guard const lock(mutex_);
    queue_[(head_ + size_) % queue_.size()] = task;
    ++size_;
    pending_[task] = 1;
    ++num_pending_;
  }
  submitted_.notify_one();
}

bool Progress::finished(std::uint32_t task) const noexcept {
  return task == kAll ? num_pending_ == 0 : pending_[task] == 0;
}

void Progress::drain(std::uint32_t task) noexcept {
  std::unique_lock lock(mutex_);
  if (thread_.joinable()) {
    completed_.wait(lock, [&] { return finished(task); });
    return;
  }
  while (!finished(task) && size_ > 0) work_on(queue_[head_], lock);
}

void Progress::work_on(std::uint32_t task, std::unique_lock<std::mutex>& lock) noexcept {
  head_ = (head_ + 1) % static_cast<std::uint32_t>(queue_.size());
  --size_;
  lock.unlock();
  work_(context_, task);
  lock.lock();
  pending_[task] = 0;
  --num_pending_;
}

void Progress::run() noexcept {
  FpEnvironment const environment;
  std::unique_lock lock(mutex_);
  while (true) {
    submitted_.wait(lock, [&] { return stopping_ || size_ > 0; });
    if (stopping_) return;
    work_on(queue_[head_], lock);
    completed_.notify_all();
  }
}

}  // namespace gradsieve
