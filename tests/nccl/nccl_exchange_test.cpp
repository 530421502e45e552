// SPDX-License-Identifier: Apache-2.0
// The exchanges of device memory over NCCL, with ranks that are threads.
#include "comm/nccl/nccl_exchange.hpp"

#include <gtest/gtest.h>

#include "comm/nccl/nccl_setup.hpp"
#include "tests/nccl/nccl_checks.hpp"

namespace gradsieve::testing {
namespace {

class NcclExchanges : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!has_devices(GetParam())) GTEST_SKIP() << "needs " << GetParam() << " devices";
  }
  static void on_all_ranks(void (*check)(NcclRank&)) {
    run_device_ranks(GetParam(), [&](Transport& host) {
      NcclRank rank(host);
      check(rank);
    });
  }
};

TEST_P(NcclExchanges, AllGatherBringsEveryRanksBytes) {
  on_all_ranks([](NcclRank& rank) { check_all_gather(rank, rank.exchange()); });
}

TEST_P(NcclExchanges, AllToAllTransposes) {
  on_all_ranks([](NcclRank& rank) { check_all_to_all(rank, rank.exchange()); });
}

TEST_P(NcclExchanges, AllReduceSums) {
  on_all_ranks([](NcclRank& rank) { check_all_reduce(rank, rank.exchange()); });
}

TEST_P(NcclExchanges, AllReduceMinFindsTheLeast) {
  on_all_ranks([](NcclRank& rank) { check_all_reduce_min(rank, rank.exchange()); });
}

TEST_P(NcclExchanges, StreamsAndEventsOrderThem) {
  on_all_ranks([](NcclRank& rank) { EXPECT_TRUE(distinct_streams_agree(rank, EventWaits::all)); });
}

// The check of the check: on a device it may go well, with lazy streams it never does.
class NcclExchangesPlanted : public NcclExchanges {};
TEST_P(NcclExchangesPlanted, AMissingWaitBetweenStreamsShows) {
  on_all_ranks([](NcclRank& rank) {
    EXPECT_FALSE(distinct_streams_agree(rank, EventWaits::without_filling));
    EXPECT_FALSE(distinct_streams_agree(rank, EventWaits::without_exchange));
  });
}

TEST_P(NcclExchanges, AGraphReplaysThemOnNewData) { on_all_ranks(check_graph); }

TEST_P(NcclExchanges, AnOldLibrarySwapsInAGroup) {
  run_device_ranks(GetParam(), [](Transport& host) {
    std::unique_ptr<NcclCommunicator> const made = make_communicator(host);
    NcclApi without = made->api();
    without.all_to_all = nullptr;
    NcclCommunicator communicator(without, made->handle(), NcclCommunicator::Ownership::borrowed,
                                  std::chrono::seconds(20));
    NcclExchange exchange(communicator);
    NcclRank rank(host);
    check_all_to_all(rank, exchange);
  });
}

TEST_P(NcclExchanges, CountersSayWhatWasHandedOver) {
  run_device_ranks(GetParam(), [](Transport& host) {
    NcclRank rank(host);
    std::uint64_t const others = static_cast<std::uint64_t>(host.world_size()) - 1;
    std::size_t const num_ranks = static_cast<std::size_t>(host.world_size());
    OnDevice<std::byte> const own(rank.step(), std::vector<std::byte>(64 * num_ranks));
    OnDevice<std::byte> const all(rank.step(), std::vector<std::byte>(64 * num_ranks * num_ranks));
    ConstBytes const bytes = own.span();
    ASSERT_TRUE(rank.exchange().all_gather(rank.stream(), bytes, all.span()).ok());
    std::uint64_t expected = 64 * num_ranks * others;
    EXPECT_EQ(rank.transport().counters().bytes_sent, expected);
    ASSERT_TRUE(
        rank.exchange().all_to_all(rank.stream(), bytes, all.span().first(bytes.size())).ok());
    expected += 64 * others;
    EXPECT_EQ(rank.transport().counters().bytes_sent, expected);
    ConstTensorView const numbers(own.data(), 16, DType::f32, Device::cuda);
    TensorView const sum(all.data(), 16, DType::f32, Device::cuda);
    ASSERT_TRUE(rank.exchange().all_reduce(rank.stream(), numbers, sum).ok());
    expected += 64;
    EXPECT_EQ(rank.transport().counters().bytes_sent, expected);
    EXPECT_EQ(rank.transport().counters().messages_sent, 3U);
    rank.step().wait();
  });
}

TEST_P(NcclExchanges, TheCurrentDeviceStays) {
  run_device_ranks(GetParam(), [](Transport& host) {
    NcclRank rank(host);
    int num_devices = 0;
    require(cudaGetDeviceCount(&num_devices));
    OnDevice<std::byte> const own(rank.step(), std::vector<std::byte>(16));
    OnDevice<std::byte> const all(
        rank.step(), std::vector<std::byte>(16 * static_cast<std::size_t>(host.world_size())));
    int const elsewhere = (host.rank() + 1) % num_devices;
    require(cudaSetDevice(elsewhere));
    EXPECT_TRUE(rank.exchange().all_gather(rank.stream(), own.span(), all.span()).ok());
    int device = -1;
    require(cudaGetDevice(&device));
    EXPECT_EQ(device, elsewhere);
    require(cudaSetDevice(host.rank()));
    rank.step().wait();
  });
}

TEST_P(NcclExchanges, WrongSizesAreRefusedAtOnce) {
  run_device_ranks(GetParam(), [](Transport& host) {
    NcclRank rank(host);
    std::size_t const num_ranks = static_cast<std::size_t>(host.world_size());
    OnDevice<std::byte> const memory(rank.step(), std::vector<std::byte>(64 * num_ranks));
    Bytes const bytes = memory.span();
    DeviceExchange& exchange = rank.exchange();
    EXPECT_EQ(
        exchange.all_gather(rank.stream(), bytes.first(3), bytes.first(3 * num_ranks + 1)).code(),
        Code::invalid_argument);
    EXPECT_EQ(exchange.all_to_all(rank.stream(), bytes.first(num_ranks), bytes).code(),
              Code::invalid_argument);
    ConstTensorView const half(bytes.data(), 8, DType::bf16, Device::cuda);
    EXPECT_EQ(
        exchange
            .all_reduce(rank.stream(), half, TensorView(bytes.data(), 8, DType::bf16, Device::cuda))
            .code(),
        Code::unsupported);
    EXPECT_TRUE(exchange.check().ok());
  });
}

TEST_P(NcclExchanges, HostMemoryGoesOverTheHostTransport) {
  run_device_ranks(GetParam(), [](Transport& host) {
    NcclRank rank(host);
    Transport& transport = rank.transport();
    EXPECT_EQ(transport.traits().name, "nccl");
    EXPECT_TRUE(rank.exchange().is_asynchronous());
    int const next = (host.rank() + 1) % host.world_size();
    int const previous = (host.rank() + host.world_size() - 1) % host.world_size();
    std::vector<std::byte> const own = bytes_of(host.rank(), 100);
    std::vector<std::byte> received(200);
    Request sending;
    Request receiving;
    ASSERT_TRUE(transport.send(Channel::control, next, 5, own, sending).ok());
    ASSERT_TRUE(transport.receive(Channel::control, previous, 5, received, receiving).ok());
    ASSERT_TRUE(transport.wait(receiving, test::soon()).ok());
    ASSERT_TRUE(transport.wait(sending, test::soon()).ok());
    received.resize(static_cast<std::size_t>(receiving.num_bytes));
    EXPECT_EQ(received, bytes_of(previous, 100));
    EXPECT_EQ(transport.counters().bytes_sent, 100U);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclExchanges, ::testing::Values(1, 2, 3, 4));
INSTANTIATE_TEST_SUITE_P(Ranks, NcclExchangesPlanted, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace gradsieve::testing
