// SPDX-License-Identifier: Apache-2.0
// Exchanges and the local transport allocate nothing once they are set up.
#include <array>
#include <barrier>
#include <vector>

#include <gtest/gtest.h>

#include "comm/exchange/collectives.hpp"
#include "tests/support/counting_allocator.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::test {
namespace {

TEST(ExchangeAllocation, NoExchangeAllocates) {
  constexpr int kRanks = 3;
  constexpr std::size_t kCount = 1000;
  std::barrier together(kRanks);
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  run_ranks(kRanks, [&](Transport& transport) {
    std::vector<Request> requests(2 * kRanks);
    std::vector<float> const own(kCount, 1.0F);
    std::vector<float> result(kCount);
    ConstBytes const bytes = std::as_bytes(std::span(own));
    std::vector<ConstBytes> const for_each(kRanks, bytes);
    std::vector<std::byte> scratch(exchange::all_gather_scratch_bytes(kRanks, bytes.size()));
    std::array<bool, kRanks> gone{};
    std::array<bool, kRanks> heard{};
    std::array<std::uint64_t, kRanks> words{};
    exchange::ExchangeContext context;
    context.transport = &transport;
    context.requests = requests;
    context.scratch = scratch;
    context.gone = gone;
    context.deadline = soon();
    auto const received = [](int, ConstBytes) { return Status{}; };

    together.arrive_and_wait();
    if (transport.rank() == 0) before = gradsieve::testing::num_allocations();
    together.arrive_and_wait();
    bool all_ok = true;
    for (int i = 0; i < 20; ++i) {
      ++context.tag;
      all_ok &= exchange::all_gather(context, bytes, bytes.size(), received).ok();
      all_ok &= exchange::all_to_all(context, for_each, bytes.size(), received).ok();
      all_ok &=
          exchange::all_reduce(context, std::span<float const>(own), std::span<float>(result)).ok();
      all_ok &= exchange::all_gather_word(context, 5, words, heard).ok();
    }
    together.arrive_and_wait();
    if (transport.rank() == 0) after = gradsieve::testing::num_allocations();
    together.arrive_and_wait();
    EXPECT_TRUE(all_ok);
  });

  EXPECT_EQ(after - before, 0);
}

}  // namespace
}  // namespace gradsieve::test
