// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes under MPI, each with its device current.
#pragma once

#include <gtest/gtest.h>

#include "tests/nccl/nccl_ranks.hpp"
#include "tests/support/mpi_runner.hpp"

namespace gradsieve::testing {

class MpiDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    int num_ranks = 0;
    int rank = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!has_devices(num_ranks)) GTEST_SKIP() << "skipped: needs " << num_ranks << " CUDA devices";
    require(cudaSetDevice(rank));
  }
};

}  // namespace gradsieve::testing
