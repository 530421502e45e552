// SPDX-License-Identifier: Apache-2.0
// Lengths, offsets and totals beyond 32 bits, without the memory: transports that only take notes,
// and address space that nobody may touch.
#include <climits>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "comm/exchange/collectives.hpp"
#include "comm/exchange/shards.hpp"
#include "comm/exchange/swap.hpp"
#include "comm/mpi/chunks.hpp"

namespace gradsieve::test {
namespace {

/// Every receive is answered at once with as many bytes as there is room for, none of them stored.
class NotingTransport final : public Transport {
 public:
  NotingTransport(int rank, int world_size) : rank_(rank), world_size_(world_size) {}

  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int world_size() const noexcept override { return world_size_; }
  [[nodiscard]] TransportTraits traits() const noexcept override { return {.name = "noting"}; }
  Status send(Channel, int, std::uint32_t, ConstBytes bytes, Request& request) noexcept override {
    counters_.bytes_sent += bytes.size();
    ++counters_.messages_sent;
    request.done = true;
    return {};
  }
  Status receive(Channel, int peer, std::uint32_t, Bytes bytes,
                 Request& request) noexcept override {
    places.push_back({peer, bytes});
    request.num_bytes = bytes.size();
    request.done = true;
    return {};
  }
  Status wait(Request&, Deadline) noexcept override { return {}; }
  void abort() noexcept override {}
  [[nodiscard]] TransportCounters counters() const noexcept override { return counters_; }

  struct Place {
    int peer;
    Bytes bytes;
  };
  std::vector<Place> places;

 private:
  int rank_;
  int world_size_;
  TransportCounters counters_;
};

/// Addresses without memory behind them.
class Untouchable {
 public:
  explicit Untouchable(std::size_t num_bytes)
      : size_(num_bytes),
        data_(::mmap(nullptr, num_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                     0)) {}
  ~Untouchable() { ::munmap(data_, size_); }
  Untouchable(Untouchable const&) = delete;
  Untouchable& operator=(Untouchable const&) = delete;
  [[nodiscard]] Bytes bytes() const { return {static_cast<std::byte*>(data_), size_}; }

 private:
  std::size_t size_;
  void* data_;
};

exchange::ExchangeContext context_of(Transport& transport, std::vector<Request>& requests,
                                     Bytes scratch) {
  exchange::ExchangeContext context;
  context.transport = &transport;
  context.requests = requests;
  context.scratch = scratch;
  return context;
}

TEST(BigCount, BigcountC42ATotalBeyond32BitsOfSmallShares) {
  constexpr int kRanks = 1536;
  constexpr std::size_t kShare = 3'145'728;
  NotingTransport transport(7, kRanks);
  std::vector<Request> requests(2 * kRanks);
  std::size_t const scratch_bytes = exchange::all_gather_scratch_bytes(kRanks, kShare);
  EXPECT_EQ(scratch_bytes, exchange::kGatherWindow * kShare);
  Untouchable const memory(scratch_bytes + kShare);
  exchange::ExchangeContext context =
      context_of(transport, requests, memory.bytes().first(scratch_bytes));
  std::uint64_t total = 0;
  std::uint64_t last_displacement = 0;

  Status const status = exchange::all_gather(context, memory.bytes().last(kShare), kShare,
                                             [&](int, ConstBytes bytes) -> Status {
                                               last_displacement = total;
                                               total += bytes.size();
                                               return {};
                                             });

  EXPECT_TRUE(status.ok());
  EXPECT_EQ(total, 4'831'838'208);
  EXPECT_EQ(last_displacement, 4'828'692'480);
  EXPECT_EQ(transport.counters().bytes_sent, std::uint64_t{kRanks - 1} * kShare);
}

TEST(BigCount, BigcountC43TheOffsetOfTheLastRankIsBeyond31Bits) {
  constexpr int kRanks = 8;
  constexpr std::size_t kShare = 320'000'000;
  NotingTransport transport(0, kRanks);
  std::vector<Request> requests(2 * kRanks);
  Untouchable const memory(kRanks * kShare);
  exchange::ExchangeContext context = context_of(transport, requests, {});

  Status const status = exchange::swap(
      context, {}, [](int) { return ConstBytes(); },
      [&](int peer, int) {
        return memory.bytes().subspan(static_cast<std::size_t>(peer) * kShare, kShare);
      },
      [](int, ConstBytes) { return Status{}; });

  EXPECT_TRUE(status.ok());
  ASSERT_EQ(transport.places.size(), 7);
  EXPECT_EQ(transport.places.back().peer, 7);
  EXPECT_EQ(transport.places.back().bytes.data() - memory.bytes().data(), 2'240'000'000);
  EXPECT_EQ(exchange::shard_range(kRanks * kShare, 1, kRanks, 7).begin, 2'240'000'000);
  EXPECT_EQ(exchange::all_reduce_scratch_bytes(kRanks, kRanks * kShare, DType::f32),
            7 * 4 * kShare);
}

TEST(BigCount, BigcountC44EveryByteIsInOneChunkAndNoCountBeyondAnInt) {
  for (std::uint64_t const num_bytes :
       {(std::uint64_t{1} << 31) + 5, (std::uint64_t{1} << 31) - 1, std::uint64_t{1} << 31,
        (std::uint64_t{1} << 33) + 1, std::uint64_t{0}}) {
    for (int const chunk_bytes : {1 << 30, 1 << 20, INT_MAX}) {
      std::uint64_t next = 0;
      std::uint64_t num_chunks = 0;
      Chunk chunk;
      do {
        chunk = chunk_at(num_bytes, chunk_bytes, next);
        ASSERT_EQ(chunk.offset_bytes, next);
        ASSERT_GE(chunk.num_bytes, 0);
        ASSERT_LE(chunk.num_bytes, chunk_bytes);
        ASSERT_EQ(chunk.last, chunk.num_bytes < chunk_bytes);
        next += static_cast<std::uint64_t>(chunk.num_bytes);
        ++num_chunks;
      } while (!chunk.last);
      EXPECT_EQ(next, num_bytes);
      EXPECT_EQ(num_chunks, num_bytes / static_cast<std::uint64_t>(chunk_bytes) + 1);
    }
  }
  // 2097152 blocks of 1024 and 5 more.
  EXPECT_EQ(chunk_at((std::uint64_t{1} << 31) + 5, 1024, std::uint64_t{2'097'152} * 1024).num_bytes,
            5);
}

TEST(BigCount, BigcountC45SizesAreBytesAndNothingIsWrittenBeyondThem) {
  // Three f32 tensors of 200000 elements, each beside canaries.
  constexpr std::size_t kElements = 200'000;
  NotingTransport transport(0, 2);
  std::vector<Request> requests(4);
  for (int tensor = 0; tensor < 3; ++tensor) {
    std::vector<float> const own(kElements, 1.0F);
    std::vector<float> result(kElements + 2, -7.0F);
    std::vector<std::byte> scratch(exchange::all_reduce_scratch_bytes(2, kElements, DType::f32));
    EXPECT_EQ(scratch.size(), kElements / 2 * sizeof(float));
    exchange::ExchangeContext context = context_of(transport, requests, scratch);
    ASSERT_TRUE(exchange::all_reduce(context, std::span<float const>(own),
                                     TensorView(result.data() + 1, kElements, DType::f32))
                    .ok());
    EXPECT_EQ(result.front(), -7.0F);
    EXPECT_EQ(result.back(), -7.0F);
  }
  // Each sends half a tensor twice: 800000 bytes per tensor.
  EXPECT_EQ(transport.counters().bytes_sent, 3 * 800'000);
}

TEST(Shards, CoverEveryElementOnceAtBlockBorders) {
  for (std::uint64_t const num_elements : {0U, 1U, 7U, 64U, 65U, 1000U, 65'537U}) {
    for (std::uint64_t const block_elements : {1U, 8U, 64U, 4096U}) {
      for (int world_size = 1; world_size <= 9; ++world_size) {
        std::uint64_t next = 0;
        for (int owner = 0; owner < world_size; ++owner) {
          exchange::ElementRange const range =
              exchange::shard_range(num_elements, block_elements, world_size, owner);
          EXPECT_EQ(range.begin, next);
          EXPECT_GE(range.end, range.begin);
          EXPECT_TRUE(range.begin % block_elements == 0 || range.begin == num_elements);
          EXPECT_LE(range.num_elements(),
                    exchange::max_shard_elements(num_elements, block_elements, world_size));
          next = range.end;
        }
        EXPECT_EQ(next, num_elements);
      }
    }
  }
}

TEST(Shards, AreAsEvenAsBlocksAllow) {
  using exchange::ElementRange;
  EXPECT_EQ(exchange::shard_range(10, 1, 4, 0), (ElementRange{0, 3}));
  EXPECT_EQ(exchange::shard_range(10, 1, 4, 1), (ElementRange{3, 6}));
  EXPECT_EQ(exchange::shard_range(10, 1, 4, 2), (ElementRange{6, 8}));
  EXPECT_EQ(exchange::shard_range(10, 1, 4, 3), (ElementRange{8, 10}));
  EXPECT_EQ(exchange::shard_range(10, 4, 2, 0), (ElementRange{0, 8}));
  EXPECT_EQ(exchange::shard_range(10, 4, 2, 1), (ElementRange{8, 10}));
  EXPECT_EQ(exchange::shard_range(3, 4, 3, 2), (ElementRange{3, 3}));
}

TEST(Shards, NearTheEndOf64BitsDoNotOverflow) {
  std::uint64_t const most = ~std::uint64_t{0};
  EXPECT_EQ(exchange::shard_range(most, 4096, 3, 2).end, most);
  EXPECT_EQ(exchange::shard_range(most, most, 2, 0), (exchange::ElementRange{0, most}));
}

}  // namespace
}  // namespace gradsieve::test
