// SPDX-License-Identifier: Apache-2.0
// Communicators.
#include <cstring>
#include <utility>

#ifdef GRADSIEVE_HAVE_NCCL
#include "gradsieve/nccl.hpp"
#endif

#include "bindings/c/guard.hpp"
#include "bindings/c/handles.hpp"
#include "bindings/c/mpi_module_loader.hpp"
#include "bindings/c/table_transport.hpp"

using namespace gradsieve;

namespace {

/// A transport and the one it slows down.
struct Limited {
  std::shared_ptr<Transport> inner;
  std::unique_ptr<Transport> outer;
};

/// NCCL and the transport that it was made over.
struct NcclOver {
  std::shared_ptr<Transport> host;
  std::unique_ptr<Transport> outer;
};

#ifndef GRADSIEVE_HAVE_NCCL
[[noreturn]] void refuse_nccl() {
  throw Error(Code::not_built, "this build has no NCCL transport; it has: local, table, mpi");
}
#endif

}  // namespace

extern "C" {

gsvResult_t gsvCommInitLocal(gsvComm_t* comms, int32_t world_size) {
  return c::guard([&] {
    c::required(comms, "comms");
    if (world_size < 1)
      throw Error(Code::invalid_argument,
                  "world_size is " + std::to_string(world_size) + "; expected 1 or more");
    auto const group = std::make_shared<LocalGroup>(world_size);
    std::vector<std::unique_ptr<gsvComm>> made;
    for (int rank = 0; rank < world_size; ++rank) {
      made.push_back(std::make_unique<gsvComm>());
      made.back()->transport = {group, &group->transport(rank)};
    }
    for (std::unique_ptr<gsvComm>& comm : made) *comms++ = comm.release();
  });
}

gsvResult_t gsvCommInitTable(gsvComm_t* comm, gsvTransportTable_t const* table) {
  return c::guard([&] {
    c::required(comm, "comm");
    gsvTransportTable const known = c::read(&c::required(table, "table"), "table");
    auto made = std::make_unique<gsvComm>();
    made->transport = std::make_shared<c::TableTransport>(known);
    *comm = made.release();
  });
}

gsvResult_t gsvCommInitMpi(gsvComm_t* comm, void const* mpi_comm, char const* module_path) {
  return c::guard([&] {
    c::required(comm, "comm");
    auto made = std::make_unique<gsvComm>();
    made->transport = c::make_module_transport(mpi_comm, false, module_path);
    *comm = made.release();
  });
}

gsvResult_t gsvCommInitMpiFortran(gsvComm_t* comm, int32_t mpi_comm, char const* module_path) {
  return c::guard([&] {
    c::required(comm, "comm");
    auto made = std::make_unique<gsvComm>();
    made->transport = c::make_module_transport(&mpi_comm, true, module_path);
    *comm = made.release();
  });
}

#ifdef GRADSIEVE_HAVE_NCCL

gsvResult_t gsvNcclGetUniqueId(void* id) {
  return c::guard([&] {
    NcclId const made = make_nccl_id();
    static_assert(sizeof made.bytes == GSV_NCCL_ID_BYTES);
    std::memcpy(&c::required(static_cast<char*>(id), "id"), made.bytes.data(), sizeof made.bytes);
  });
}

gsvResult_t gsvCommInitNccl(gsvComm_t* comm, int32_t world_size, void const* id, int32_t rank) {
  return c::guard([&] {
    c::required(comm, "comm");
    NcclId known;
    std::memcpy(known.bytes.data(), &c::required(static_cast<char const*>(id), "id"),
                sizeof known.bytes);
    auto made = std::make_unique<gsvComm>();
    made->transport = make_nccl_transport(known, world_size, rank);
    *comm = made.release();
  });
}

gsvResult_t gsvCommInitNcclOver(gsvComm_t* comm, gsvComm_t host) {
  return c::guard([&] {
    c::required(comm, "comm");
    auto const over = std::make_shared<NcclOver>();
    over->host = c::required(host, "host").transport;
    over->outer = make_nccl_transport(*over->host);
    auto made = std::make_unique<gsvComm>();
    made->transport = {over, over->outer.get()};
    *comm = made.release();
  });
}

gsvResult_t gsvCommInitNcclBorrowed(gsvComm_t* comm, void* nccl_comm) {
  return c::guard([&] {
    c::required(comm, "comm");
    auto made = std::make_unique<gsvComm>();
    made->transport = make_nccl_transport(nccl_comm);
    *comm = made.release();
  });
}

#else

gsvResult_t gsvNcclGetUniqueId(void*) { return c::guard(refuse_nccl); }
gsvResult_t gsvCommInitNccl(gsvComm_t*, int32_t, void const*, int32_t) {
  return c::guard(refuse_nccl);
}
gsvResult_t gsvCommInitNcclOver(gsvComm_t*, gsvComm_t) { return c::guard(refuse_nccl); }
gsvResult_t gsvCommInitNcclBorrowed(gsvComm_t*, void*) { return c::guard(refuse_nccl); }

#endif

gsvResult_t gsvCommInitLimited(gsvComm_t* comm, gsvComm_t inner, double bits_per_second,
                               uint64_t latency_ns) {
  return c::guard([&] {
    c::required(comm, "comm");
    if (!(bits_per_second >= 0.0))
      throw Error(Code::invalid_argument, "bits_per_second: expected 0 or more");
    LinkLimit const limit{bits_per_second, std::chrono::nanoseconds(latency_ns)};
    auto made = std::make_unique<gsvComm>();
    auto const limited = std::make_shared<Limited>();
    limited->inner = c::required(inner, "inner").transport;
    limited->outer = make_limited(*limited->inner, limit);
    made->transport = {limited, limited->outer.get()};
    *comm = made.release();
  });
}

gsvResult_t gsvCommCount(gsvComm_t comm, int32_t* world_size) {
  return c::guard([&] {
    c::required(world_size, "world_size") = c::required(comm, "comm").transport->world_size();
  });
}

gsvResult_t gsvCommUserRank(gsvComm_t comm, int32_t* rank) {
  return c::guard([&] { c::required(rank, "rank") = c::required(comm, "comm").transport->rank(); });
}

gsvResult_t gsvCommCounters(gsvComm_t comm, uint64_t* bytes_sent, uint64_t* messages_sent) {
  return c::guard([&] {
    TransportCounters const counters = c::required(comm, "comm").transport->counters();
    if (bytes_sent != nullptr) *bytes_sent = counters.bytes_sent;
    if (messages_sent != nullptr) *messages_sent = counters.messages_sent;
  });
}

gsvResult_t gsvCommAbort(gsvComm_t comm) {
  return c::guard([&] { c::required(comm, "comm").transport->abort(); });
}

gsvResult_t gsvCommDestroy(gsvComm_t comm) {
  return c::guard([&] { delete comm; });
}

}  // extern "C"
