// SPDX-License-Identifier: Apache-2.0
// Runs a test body as this rank of an MPI program; tests/support/mpi_main.cpp brings the main().
#pragma once

#include <functional>
#include <memory>

#include "gradsieve/mpi.hpp"

namespace gradsieve::test {

/// Calls body(transport) on every rank of MPI_COMM_WORLD, and returns when all are back.
inline void run_mpi_rank(std::function<void(Transport&)> const& body, MpiOptions options = {}) {
  std::unique_ptr<Transport> const transport = make_mpi_transport(MPI_COMM_WORLD, options);
  body(*transport);
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace gradsieve::test
