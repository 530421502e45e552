// SPDX-License-Identifier: Apache-2.0
// The exchanges of device memory over NCCL, with ranks that are processes under MPI.
#include <gtest/gtest.h>

#include "comm/nccl/nccl_setup.hpp"
#include "tests/nccl/mpi_devices.hpp"
#include "tests/nccl/nccl_checks.hpp"

namespace gradsieve::testing {
namespace {

class NcclOverMpi : public MpiDevices {
 protected:
  static void on_this_rank(void (*check)(NcclRank&)) {
    test::run_mpi_rank([&](Transport& host) {
      NcclRank rank(host);
      check(rank);
    });
  }
};

TEST_F(NcclOverMpi, EveryExchange) {
  on_this_rank([](NcclRank& rank) {
    check_all_gather(rank, rank.exchange());
    check_all_to_all(rank, rank.exchange());
    check_all_reduce(rank, rank.exchange());
    check_all_reduce_min(rank, rank.exchange());
  });
}

TEST_F(NcclOverMpi, StreamsAndEventsOrderThem) {
  on_this_rank([](NcclRank& rank) { EXPECT_TRUE(distinct_streams_agree(rank, EventWaits::all)); });
}

TEST_F(NcclOverMpi, AGraphReplaysThemOnNewData) { on_this_rank(check_graph); }

TEST_F(NcclOverMpi, AMissingRankIsATimeout) {
  constexpr std::chrono::milliseconds kPatience{600};
  test::run_mpi_rank([&](Transport& host) {
    NcclRank rank(host, {.call_deadline = kPatience});
    OnDevice<std::byte> const own(rank.step(), std::vector<std::byte>(16));
    OnDevice<std::byte> const all(
        rank.step(), std::vector<std::byte>(16 * static_cast<std::size_t>(host.world_size())));
    Deadline const begin = Clock::now();
    if (host.rank() == 0) {
      while (rank.exchange().check().ok() && Clock::now() - begin < 30 * kPatience)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_EQ(rank.exchange().check().code(), Code::peer_failed);
      return;
    }
    Status const status = finish(rank.exchange(), rank.stream(), kPatience, [&] {
      return rank.exchange().all_gather(rank.stream(), own.span(), all.span());
    });
    EXPECT_TRUE(status.code() == Code::timeout || status.code() == Code::peer_failed)
        << status.message();
    rank.transport().abort();
    EXPECT_LT(Clock::now() - begin, 30 * kPatience);
    rank.step().wait();
  });
}

TEST_F(NcclOverMpi, ABorrowedCommunicatorCarriesMessagesToo) {
  test::run_mpi_rank([](Transport& host) {
    std::unique_ptr<NcclCommunicator> const owner = make_communicator(host);
    std::unique_ptr<Transport> const transport = make_nccl_transport(owner->handle());
    int const next = (host.rank() + 1) % host.world_size();
    int const previous = (host.rank() + host.world_size() - 1) % host.world_size();
    std::vector<std::byte> const sent = bytes_of(host.rank(), 100000);
    std::vector<std::byte> received(sent.size());
    Request sending;
    Request receiving;
    ASSERT_TRUE(transport->send(Channel::data, next, 1, sent, sending).ok());
    ASSERT_TRUE(transport->receive(Channel::data, previous, 1, received, receiving).ok());
    EXPECT_TRUE(transport->wait(receiving, test::soon()).ok());
    EXPECT_TRUE(transport->wait(sending, test::soon()).ok());
    EXPECT_EQ(received, bytes_of(previous, sent.size()));
  });
}

}  // namespace
}  // namespace gradsieve::testing
