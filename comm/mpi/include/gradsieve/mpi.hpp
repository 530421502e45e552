// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes of an MPI program. Part of the component gradsieve::mpi, and the one
// public header that needs a third party's: not in gradsieve.hpp.
#pragma once

#include <cstddef>
#include <memory>

#include <mpi.h>

#include "gradsieve/transport.hpp"

namespace gradsieve {

struct MpiOptions {
  /// Longest piece handed to MPI at once, 1 ... 2^31 - 1. The same on all ranks. The default is
  /// below the 64 KiB up to which Open MPI sends over TCP without asking the receiver first: asking
  /// is slow where bytes flow both ways.
  std::size_t chunk_bytes = std::size_t{60} << 10;
};

/// A transport over `communicator`, of which it makes two duplicates (data and control) with
/// MPI_ERRORS_RETURN; the original stays the caller's. Collective over the communicator.
///
/// Threads:    MPI_THREAD_MULTIPLE: any. MPI_THREAD_SERIALIZED: any, but the program keeps its own
///             MPI calls apart from them. Below that: the thread that initialised MPI; elsewhere
///             Code::invalid_usage. traits().any_thread says whether a progress thread may drive
///             it.
/// Progress:   bytes move while some request of this rank is waited for.
/// Timeouts:   a receive is taken back. A send that MPI holds cannot be: it is left to MPI, which
/// may
///             read its bytes until MPI_Finalize, so they have to stay mapped, not unchanged (what
///             arrives late is told by its header's step). A receive cut off in the middle of a
///             chunk leaves its bytes to MPI in the same way: every later call is then
///             Code::transport_error.
/// Tags:       at most MPI_TAG_UB, else Code::invalid_argument.
/// Fork:       in a child process every call returns Code::forked_child.
/// Lifetime:   destroy it before MPI_Finalize (collective) or after; it never calls MPI_Init or
///             MPI_Finalize.
/// Errors:     throws Error: invalid_usage if MPI is not initialised, is finalised, or this thread
///             may not call it; invalid_argument for a communicator or an option that cannot be
///             used; mismatch if ranks have different options; transport_error if MPI fails.
[[nodiscard]] std::unique_ptr<Transport> make_mpi_transport(MPI_Comm communicator,
                                                            MpiOptions options = {});

}  // namespace gradsieve
