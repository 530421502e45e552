// SPDX-License-Identifier: Apache-2.0
// Finds and asks the module that speaks MPI.
#pragma once

#include <memory>

#include "gradsieve/transport.hpp"

namespace gradsieve::c {

/// `path`: NULL takes GRADSIEVE_MPI_MODULE, or else libgsv_mpi.so beside this library or by name.
/// Throws Error: io_error if there is no module, and what the module says.
[[nodiscard]] std::shared_ptr<Transport> make_module_transport(void const* communicator,
                                                               bool is_fortran, char const* path);

}  // namespace gradsieve::c
