// SPDX-License-Identifier: Apache-2.0
// Ranks whose gradients are on GPUs. Part of the component gradsieve::nccl, which opens NCCL at run
// time: not in gradsieve.hpp.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>

#include "gradsieve/transport.hpp"

namespace gradsieve {

struct NcclOptions {
  /// How long the ranks wait for each other when the transport is made, in each of its two parts:
  /// over `host`, and inside NCCL.
  std::chrono::milliseconds deadline{30000};
  /// How long a call may stay inside NCCL on the host, which connects ranks when they first need
  /// it. What runs on a stream is not bounded by it.
  std::chrono::milliseconds call_deadline{30000};
};

/// A transport whose device_exchange() runs on a communicator of NCCL made for it, of the ranks of
/// `host`, each on the CUDA device that is current in the calling thread. NCCL wants another device
/// for each rank. Collective over the ranks of `host`.
///
/// Host:       serves send() and receive() of both channels, and brought the communicator's id;
///             LocalGroup, MPI or a table. It has to outlive the transport.
/// Exchanges:  on any stream of that device, in the same order on all ranks, also where a rank uses
///             several streams. Nothing in them waits for the device or for other ranks, except
///             that NCCL connects ranks when an exchange of a new kind or size first needs it: make
///             each once before it is captured in a graph.
/// Errors of the exchanges: NCCL's Codes are peer_failed, transport_error, device_error, and
///             mismatch where the ranks' calls differ in a way that NCCL sees; often it does not,
///             and the stream stops: whoever waits for it polls device_exchange()->check(), keeps a
///             deadline and calls abort().
/// abort():    also aborts `host`, ends what is on the streams, whose memory is unspecified then,
///             and makes check() Code::aborted. From any thread.
/// Counters:   bytes handed to NCCL for other ranks, beside those of send(): all_gather
///             own · (P − 1), all_to_all the P − 1 other parts, a reduction elements · width.
/// Lifetime:   destroy it on all ranks, as NCCL may wait for them there, up to call_deadline; after
///             abort() or an error it waits for nobody. Destroy the CUDA graphs that captured its
///             exchanges before: until then NCCL keeps a communicator, also one that was aborted.
/// Errors:     throws Error, on all ranks if on one: unsupported if NCCL cannot be opened or is too
///             old, device_error if there is no CUDA device, mismatch if versions of NCCL differ,
///             timeout if a rank does not come, peer_failed where it was another rank's fault.
[[nodiscard]] std::unique_ptr<Transport> make_nccl_transport(Transport& host,
                                                             NcclOptions options = {});

/// What ranks that have no host transport need to find each other.
struct NcclId {
  std::array<std::byte, 128> bytes = {};
};
/// Made by one rank, which brings it to the others by ways of its own. Throws Error(unsupported).
[[nodiscard]] NcclId make_nccl_id();
/// A communicator of its own among the ranks that have this id, each on its current device; send()
/// and receive() as on a borrowed communicator, below. Collective, up to options.deadline.
[[nodiscard]] std::unique_ptr<Transport> make_nccl_transport(NcclId const& id, int world_size,
                                                             int rank, NcclOptions options = {});

/// The same on a communicator that is there already: `nccl_comm` is an ncclComm_t, blocking or not,
/// of the NCCL library that this process has open. It stays its owner's and has to outlive the
/// transport: it is never destroyed and never aborted. Collective over its ranks.
///
/// Exchanges:  on `nccl_comm`, so in one order on all ranks with what its owner does there. Where
///             NCCL has to connect ranks, a call waits for them as long as NCCL does.
/// Messages:   send() and receive() move host memory over a second communicator, split from the
///             first for them. They are meant for handshakes, votes and roll calls: staged through
///             64 KiB of device and of pinned memory for each rank, and what somebody sends before
///             it is asked for waits in memory allocated for it. They move while some request of
///             this rank is waited for, those of one rank together, both channels alike: a wait may
///             last until the ranks of other requests that this rank has started have come, and
///             where one rank is missing, others seem to be, too. A roll call over another
///             transport tells more: give one as `host` where there is one.
/// Timeouts:   a request is taken back. A send longer than 4064 bytes that is cut off in the middle
///             ends the messages of this transport with Code::transport_error.
/// abort():    ends the messages; every later call of either kind is Code::aborted. What is on the
///             streams of exchanges stays there until the communicator's owner aborts it.
/// Errors:     throws Error: invalid_argument for null, otherwise as above.
[[nodiscard]] std::unique_ptr<Transport> make_nccl_transport(void* nccl_comm,
                                                             NcclOptions options = {});

}  // namespace gradsieve
