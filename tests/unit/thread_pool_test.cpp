// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <limits>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "gradsieve/context.hpp"

#include "core/fp_environment.hpp"

namespace gradsieve {
namespace {

using Chunk = std::pair<std::uint64_t, std::uint64_t>;

std::set<Chunk> chunks_of(ThreadPool& pool, std::uint64_t count, std::uint64_t grain) {
  std::set<Chunk> chunks;
  std::atomic_flag taken;
  pool.parallel_for(count, grain, [&](std::uint64_t begin, std::uint64_t end) {
    while (taken.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    chunks.insert({begin, end});
    taken.clear(std::memory_order_release);
  });
  return chunks;
}

class ThreadPoolTest : public ::testing::TestWithParam<int> {
 protected:
  ThreadPool pool_{GetParam()};
};

TEST_P(ThreadPoolTest, CutsAtFixedBorders) {
  EXPECT_EQ(chunks_of(pool_, 10, 4), (std::set<Chunk>{{0, 4}, {4, 8}, {8, 10}}));
  EXPECT_EQ(chunks_of(pool_, 8, 4), (std::set<Chunk>{{0, 4}, {4, 8}}));
  EXPECT_EQ(chunks_of(pool_, 3, 100), (std::set<Chunk>{{0, 3}}));
  EXPECT_EQ(pool_.num_threads(), GetParam());
}

TEST_P(ThreadPoolTest, TakesGrainZeroForOne) {
  EXPECT_EQ(chunks_of(pool_, 3, 0), (std::set<Chunk>{{0, 1}, {1, 2}, {2, 3}}));
}

TEST_P(ThreadPoolTest, CallsNothingForACountOfZero) { EXPECT_TRUE(chunks_of(pool_, 0, 4).empty()); }

TEST_P(ThreadPoolTest, CountsReachTheEndOf64Bits) {
  std::uint64_t const most = std::numeric_limits<std::uint64_t>::max();

  EXPECT_EQ(chunks_of(pool_, most, most / 2),
            (std::set<Chunk>{{0, most / 2}, {most / 2, most - 1}, {most - 1, most}}));
}

TEST_P(ThreadPoolTest, ReturnsOnlyWhenAllIsDone) {
  std::vector<std::uint64_t> sums(1000);
  for (std::uint64_t job = 0; job < 500; ++job) {
    std::uint64_t const count = (job * 37) % sums.size();
    pool_.parallel_for(count, 1 + job % 50, [&](std::uint64_t begin, std::uint64_t end) {
      for (std::uint64_t i = begin; i < end; ++i) sums[i] += 1;
    });
    // No lock: parallel_for itself has to order these reads and writes.
    for (std::uint64_t i = 0; i < count; ++i) sums[i] -= 1;
  }

  EXPECT_EQ(sums, std::vector<std::uint64_t>(sums.size()));
}

TEST_P(ThreadPoolTest, ABodyMayCallAgain) {
  std::atomic<std::uint64_t> total = 0;

  pool_.parallel_for(8, 1, [&](std::uint64_t, std::uint64_t) {
    pool_.parallel_for(10, 3,
                       [&](std::uint64_t begin, std::uint64_t end) { total += end - begin; });
  });

  EXPECT_EQ(total, 80U);
}

TEST_P(ThreadPoolTest, TwoCallersGetRightResults) {
  auto const drive = [&] {
    for (int job = 0; job < 200; ++job) {
      std::atomic<std::uint64_t> total = 0;
      pool_.parallel_for(100, 7,
                         [&](std::uint64_t begin, std::uint64_t end) { total += end - begin; });
      ASSERT_EQ(total, 100U);
    }
  };
  std::thread other(drive);

  drive();

  other.join();
}

TEST_P(ThreadPoolTest, AllThreadsTakePart) {
  int const wanted = GetParam();
  std::atomic<int> inside = 0;
  auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);

  pool_.parallel_for(static_cast<std::uint64_t>(wanted), 1, [&](std::uint64_t, std::uint64_t) {
    inside += 1;
    // Each chunk waits for all the others, so that no thread can do two.
    while (inside < wanted && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
  });

  EXPECT_EQ(inside, wanted);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 8));

TEST(ThreadPool, RankThreadsOwnPoolsOfTheirOwn) {
  std::vector<std::thread> ranks;
  std::atomic<std::uint64_t> total = 0;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&] {
      ThreadPool pool(2);
      for (int job = 0; job < 50; ++job) {
        pool.parallel_for(64, 8,
                          [&](std::uint64_t begin, std::uint64_t end) { total += end - begin; });
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();

  EXPECT_EQ(total, 4U * 50U * 64U);
}

TEST(ThreadPool, RefusesFewerThanOneThread) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(ThreadPool(-3), Error);
}

#if defined(__SSE2__)
TEST(ThreadPool, WorkersKeepDenormalsEvenIfTheirMakerDoesNot) {
  unsigned const saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040);  // flush to zero, denormals are zero
  ThreadPool pool(2);
  std::thread::id const caller = std::this_thread::get_id();
  std::atomic<bool> worker_came = false;
  std::atomic<unsigned> flags = 0;
  auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);

  pool.parallel_for(2, 1, [&](std::uint64_t, std::uint64_t) {
    if (std::this_thread::get_id() != caller) {
      flags = _mm_getcsr();
      worker_came = true;
    }
    while (!worker_came && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  });
  _mm_setcsr(saved);

  EXPECT_TRUE(worker_came);
  EXPECT_EQ(flags & 0x8040U, 0U);
}
#endif

}  // namespace
}  // namespace gradsieve
