// SPDX-License-Identifier: Apache-2.0
// The team of threads. A job is a row of chunks and a counter that hands them out; which thread
// gets which chunk is open, where the chunks lie is not.
#include <algorithm>
#include <atomic>
#include <cfenv>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <unistd.h>

#include "gradsieve/context.hpp"

namespace gradsieve {
namespace {

using Invoke = void (*)(void const*, std::uint64_t, std::uint64_t);

struct Job {
  std::uint64_t count = 0;
  std::uint64_t grain = 1;
  std::uint64_t num_chunks = 0;
  void const* body = nullptr;
  Invoke invoke = nullptr;

  void run_chunk(std::uint64_t chunk) const noexcept {
    std::uint64_t const begin = chunk * grain;
    invoke(body, begin, begin + std::min(grain, count - begin));
  }
};

}  // namespace

struct ThreadPool::Impl {
  // The gate counts the workers inside the job. While the bit is set, more may enter. The caller
  // shuts it when the chunks have run out and waits only for those inside, so a worker that the
  // machine has no core for is never waited for.
  static constexpr std::uint32_t kOpen = std::uint32_t{1} << 31;

  std::vector<std::thread> workers;
  Job job;  // written while the gate is shut and nobody is inside
  ::pid_t const owner = ::getpid();
  std::atomic<bool> busy = false;
  std::atomic<bool> stopping = false;
  alignas(64) std::atomic<std::uint64_t> next_chunk = 0;
  alignas(64) std::atomic<std::uint32_t> gate = 0;
  alignas(64) std::atomic<std::uint32_t> generation = 0;

  ~Impl() {
    // A forked child has a copy of the handles, but no threads to join.
    if (::getpid() != owner) {
      for (std::thread& worker : workers) worker.detach();
      return;
    }
    stopping.store(true, std::memory_order_relaxed);
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void start(int num_workers) {
    workers.reserve(static_cast<std::size_t>(num_workers));
    for (int i = 0; i < num_workers; ++i) workers.emplace_back([this] { serve(); });
  }

  void serve() noexcept {
    // A trainer may have set flush-to-zero in the thread that made this pool. Denormals count: the
    // bits of a result must not depend on the thread that made them.
    std::fesetenv(FE_DFL_ENV);
    std::uint32_t seen = 0;
    while (true) {
      generation.wait(seen, std::memory_order_acquire);
      seen = generation.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_relaxed)) return;
      if (!enter()) continue;
      work();
      leave();
    }
  }

  bool enter() noexcept {
    std::uint32_t inside = gate.load(std::memory_order_relaxed);
    while ((inside & kOpen) != 0) {
      if (gate.compare_exchange_weak(inside, inside + 1, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }

  void leave() noexcept {
    if (gate.fetch_sub(1, std::memory_order_release) == 1) gate.notify_all();
  }

  void work() noexcept {
    while (true) {
      std::uint64_t const chunk = next_chunk.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= job.num_chunks) return;
      job.run_chunk(chunk);
    }
  }

  void run(Job const& next) noexcept {
    job = next;
    next_chunk.store(0, std::memory_order_relaxed);
    gate.store(kOpen, std::memory_order_release);
    generation.fetch_add(1, std::memory_order_release);
    std::uint64_t const helpers = std::min<std::uint64_t>(workers.size(), job.num_chunks - 1);
    if (helpers == workers.size()) {
      generation.notify_all();
    } else {
      for (std::uint64_t i = 0; i < helpers; ++i) generation.notify_one();
    }

    work();
    std::uint32_t inside = gate.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    while (inside != 0) {
      gate.wait(inside, std::memory_order_acquire);
      inside = gate.load(std::memory_order_acquire);
    }
  }
};

ThreadPool::ThreadPool(int num_threads) {
  if (num_threads < 1) {
    throw Error(Code::invalid_argument,
                "a thread pool of " + std::to_string(num_threads) +
                    " threads was asked for; expected 1 or more (1 is the caller alone)");
  }
  impl_ = std::make_unique<Impl>();
  try {
    impl_->start(num_threads - 1);
  } catch (std::system_error const&) {
    impl_.reset();
    throw Error(Code::out_of_memory,
                "the system refused to start " + std::to_string(num_threads - 1) + " threads");
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::num_threads() const noexcept { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::run(std::uint64_t count, std::uint64_t grain, void const* body,
                     Invoke invoke) noexcept {
  grain = std::max<std::uint64_t>(grain, 1);
  Job const job = {count, grain, count / grain + (count % grain != 0 ? 1 : 0), body, invoke};
  // A second caller, or a body that calls again, finds the team taken and does its chunks alone.
  bool const alone = job.num_chunks < 2 || impl_->workers.empty() ||
                     impl_->busy.exchange(true, std::memory_order_acquire);
  if (alone) {
    for (std::uint64_t chunk = 0; chunk < job.num_chunks; ++chunk) job.run_chunk(chunk);
    return;
  }
  impl_->run(job);
  impl_->busy.store(false, std::memory_order_release);
}

}  // namespace gradsieve
