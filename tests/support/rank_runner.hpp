// SPDX-License-Identifier: Apache-2.0
// Runs a test body as several ranks that are threads of this process.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gradsieve/transport.hpp"

namespace gradsieve::test {

/// Calls body(transport) once per rank, each in a thread of its own, and returns when all are back.
/// A rank that throws aborts all transports, so that nobody waits for it; then the exception that
/// came first is thrown again, with "rank N: " in front of its text.
inline void run_ranks(int world_size, std::function<void(Transport&)> const& body) {
  LocalGroup group(world_size);
  std::mutex mutex;
  std::string first_failure;
  auto const run_rank = [&](int rank) {
    std::string failure;
    try {
      body(group.transport(rank));
      return;
    } catch (std::exception const& error) {
      failure = error.what();
    } catch (...) {
      failure = "something that is no std::exception was thrown";
    }
    {
      std::lock_guard const lock(mutex);
      if (first_failure.empty()) first_failure = "rank " + std::to_string(rank) + ": " + failure;
    }
    for (int other = 0; other < world_size; ++other) group.transport(other).abort();
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  if (!first_failure.empty()) throw std::runtime_error(first_failure);
}

/// A deadline far enough not to matter on a busy machine.
[[nodiscard]] inline Deadline soon(std::chrono::milliseconds from_now = std::chrono::seconds(20)) {
  return Clock::now() + from_now;
}

}  // namespace gradsieve::test
