// SPDX-License-Identifier: Apache-2.0
// Case C-41: the memory of a sparse sum follows the real payloads, not the largest times the ranks.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include <gtest/gtest.h>

#include "gradsieve/exchange.hpp"

#include "tests/support/rank_runner.hpp"

namespace {

// Bytes that this thread has, and the most it has had; each rank is a thread.
thread_local std::int64_t live_bytes = 0;
thread_local std::int64_t peak_bytes = 0;
constexpr std::size_t kPrefix = alignof(std::max_align_t);

void* take(std::size_t num_bytes) {
  std::byte* const block = static_cast<std::byte*>(std::malloc(num_bytes + kPrefix));
  if (block == nullptr) throw std::bad_alloc();
  ::new (static_cast<void*>(block)) std::size_t(num_bytes);
  live_bytes += static_cast<std::int64_t>(num_bytes);
  if (live_bytes > peak_bytes) peak_bytes = live_bytes;
  return block + kPrefix;
}

void give_back(void* pointer) noexcept {
  if (pointer == nullptr) return;
  std::byte* const block = static_cast<std::byte*>(pointer) - kPrefix;
  live_bytes -= static_cast<std::int64_t>(*reinterpret_cast<std::size_t*>(block));
  std::free(block);
}

}  // namespace

void* operator new(std::size_t num_bytes) { return take(num_bytes); }
void* operator new[](std::size_t num_bytes) { return take(num_bytes); }
void operator delete(void* pointer) noexcept { give_back(pointer); }
void operator delete[](void* pointer) noexcept { give_back(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { give_back(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { give_back(pointer); }

namespace gradsieve::test {
namespace {

TEST(SparseMemory, SparseC41PeakFollowsTheRealPayloads) {
  constexpr std::array<std::uint64_t, 4> kPairs{1'000'000, 1, 1, 1};
  constexpr std::int64_t kPayloadBytes = 8 * 1'000'003;
  run_ranks(4, [&](Transport& transport) {
    std::uint64_t const count = kPairs[static_cast<std::size_t>(transport.rank())];
    std::vector<std::uint64_t> indices(count);
    std::vector<float> const values(count, 1.0F);
    // Descending, so that there is something to sort.
    for (std::uint64_t i = 0; i < count; ++i) indices[i] = 7 * (count - i);
    SparseResult result;
    std::int64_t const before = peak_bytes = live_bytes;

    ASSERT_TRUE(sparse_all_reduce(transport, {100'000'000, indices, values}, 1.0F, result).ok());

    std::int64_t const result_bytes = static_cast<std::int64_t>(12 * result.indices.size());
    EXPECT_EQ(result.indices.size(), 1'000'000);
    EXPECT_LE(peak_bytes - before - result_bytes, kPayloadBytes * 5 / 4 + (1 << 20))
        << "rank " << transport.rank();
  });
}

}  // namespace
}  // namespace gradsieve::test
