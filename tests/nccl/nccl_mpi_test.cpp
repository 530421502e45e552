// SPDX-License-Identifier: Apache-2.0
// The exchanges of device memory over NCCL, with ranks that are processes under MPI.
#include <gtest/gtest.h>

#include "tests/nccl/nccl_checks.hpp"
#include "tests/support/mpi_runner.hpp"

namespace gradsieve::testing {
namespace {

class NcclOverMpi : public ::testing::Test {
 protected:
  void SetUp() override {
    int num_ranks = 0;
    int rank = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!has_devices(num_ranks)) GTEST_SKIP() << "skipped: needs " << num_ranks << " CUDA devices";
    require(cudaSetDevice(rank));
  }
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

TEST_F(NcclOverMpi, StreamsAndEventsOrderThem) { on_this_rank(check_distinct_streams); }

TEST_F(NcclOverMpi, AGraphReplaysThemOnNewData) { on_this_rank(check_graph); }

}  // namespace
}  // namespace gradsieve::testing
