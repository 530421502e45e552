// SPDX-License-Identifier: Apache-2.0
// libgsv_mpi.so: the MPI transport as a table of C functions. It exports one of them and needs
// nothing of libgsv.so, so that it can be built on site, against the MPI that is there.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <mpi.h>

#include "gradsieve/gradsieve.h"
#include "gradsieve/mpi.hpp"

namespace gradsieve {
namespace {

/// A transport and the requests that its caller has under way.
class MpiModule {
 public:
  explicit MpiModule(MPI_Comm communicator) : transport_(make_mpi_transport(communicator)) {}

  [[nodiscard]] Transport& transport() noexcept { return *transport_; }

  /// Allocates only while more requests are under way than ever before.
  [[nodiscard]] Request* open(gsvRequest& given) noexcept {
    Request* request = nullptr;
    try {
      std::lock_guard const lock(mutex_);
      if (free_.empty()) {
        all_.push_back(std::make_unique<Request>());
        free_.reserve(all_.size());
        request = all_.back().get();
      } else {
        request = free_.back();
        free_.pop_back();
      }
    } catch (...) {
      given.message = "no memory for another request";
      return nullptr;
    }
    *request = {};
    given.storage[0] = reinterpret_cast<std::uintptr_t>(request);
    return request;
  }

  [[nodiscard]] static Request& opened(gsvRequest const& given) noexcept {
    return *reinterpret_cast<Request*>(static_cast<std::uintptr_t>(given.storage[0]));
  }

  /// What `status` says of a request that is over.
  gsvResult_t close(gsvRequest& given, Status status) noexcept {
    Request& request = opened(given);
    given.num_bytes = request.num_bytes;
    given.message = status.ok() ? nullptr : status.message();
    std::lock_guard const lock(mutex_);
    free_.push_back(&request);
    return static_cast<gsvResult_t>(status.code());
  }

 private:
  std::unique_ptr<Transport> transport_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Request>> all_;
  std::vector<Request*> free_;  ///< has room for all
};

MpiModule& module_of(void* self) noexcept { return *static_cast<MpiModule*>(self); }

gsvResult_t send(void* self, std::int32_t channel, std::int32_t peer, std::uint32_t tag,
                 void const* bytes, std::uint64_t num_bytes, gsvRequest* given) noexcept {
  MpiModule& module = module_of(self);
  Request* const request = module.open(*given);
  if (request == nullptr) return gsvOutOfMemory;
  ConstBytes const content{static_cast<std::byte const*>(bytes),
                           static_cast<std::size_t>(num_bytes)};
  Status const status =
      module.transport().send(static_cast<Channel>(channel), peer, tag, content, *request);
  return status.ok() ? gsvSuccess : module.close(*given, status);
}

gsvResult_t receive(void* self, std::int32_t channel, std::int32_t peer, std::uint32_t tag,
                    void* bytes, std::uint64_t capacity_bytes, gsvRequest* given) noexcept {
  MpiModule& module = module_of(self);
  Request* const request = module.open(*given);
  if (request == nullptr) return gsvOutOfMemory;
  Bytes const room{static_cast<std::byte*>(bytes), static_cast<std::size_t>(capacity_bytes)};
  Status const status =
      module.transport().receive(static_cast<Channel>(channel), peer, tag, room, *request);
  return status.ok() ? gsvSuccess : module.close(*given, status);
}

gsvResult_t wait(void* self, gsvRequest* given, std::uint64_t timeout_ns) noexcept {
  MpiModule& module = module_of(self);
  constexpr std::uint64_t kLongest = 1'000'000'000'000'000'000;  // 30 years fit in a time point
  std::chrono::nanoseconds const timeout(std::min(timeout_ns, kLongest));
  Status const status = module.transport().wait(MpiModule::opened(*given), Clock::now() + timeout);
  return module.close(*given, status);
}

void abort(void* self) noexcept { module_of(self).transport().abort(); }

gsvResult_t dense_all_reduce(void* self, void* data, std::uint64_t count,
                             std::uint32_t dtype) noexcept {
  TensorView const view(data, count, static_cast<DType>(dtype));
  return static_cast<gsvResult_t>(module_of(self).transport().dense_all_reduce(view).code());
}

void release(void* self) noexcept { delete &module_of(self); }

gsvTransportTable table_of(MpiModule& module) noexcept {
  TransportTraits const traits = module.transport().traits();
  gsvTransportTable table = GSV_INIT(gsvTransportTable);
  if (traits.any_thread) table.flags |= gsvTransportAnyThread;
  table.name = "mpi";
  table.rank = module.transport().rank();
  table.world_size = module.transport().world_size();
  table.self = &module;
  table.send = send;
  table.receive = receive;
  table.wait = wait;
  table.abort = abort;
  table.dense_all_reduce = dense_all_reduce;
  table.release = release;
  return table;
}

MPI_Comm communicator_of(void const* given, bool is_fortran) noexcept {
  if (given == nullptr) return MPI_COMM_WORLD;
  if (!is_fortran) return *static_cast<MPI_Comm const*>(given);
  return MPI_Comm_f2c(static_cast<MPI_Fint>(*static_cast<std::int32_t const*>(given)));
}

/// "Open MPI v4.1.4": the first words of what MPI says of itself, which it may be asked at any
/// time.
std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  std::string const whole(text.data());
  return whole.substr(0, whole.find_first_of(",\n"));
}

gsvResult_t fill(void const* communicator, bool is_fortran, gsvTransportTable& table) {
  // A caller of another version has another table: its own size is what may be written.
  std::size_t const size = table.struct_size;
  if (size < offsetof(gsvTransportTable, dense_all_reduce))
    throw Error(Code::unsupported, "gsvMpiTransport: this libgsv.so is too old for the module");
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0)
    throw Error(Code::invalid_usage,
                "gsvCommInitMpi: MPI is not initialised; call MPI_Init_thread before, of the MPI "
                "that the module was built for: " +
                    library_version());
  auto module = std::make_unique<MpiModule>(communicator_of(communicator, is_fortran));
  gsvTransportTable const known = table_of(*module);
  std::memcpy(&table, &known, std::min(size, sizeof known));
  table.struct_size = static_cast<std::uint32_t>(size);
  static_cast<void>(module.release());
  return gsvSuccess;
}

}  // namespace
}  // namespace gradsieve

extern "C" GSV_API gsvResult_t gsvMpiTransport(void const* communicator, std::int32_t is_fortran,
                                               gsvTransportTable* table, char* message,
                                               std::uint64_t capacity);

gsvResult_t gsvMpiTransport(void const* communicator, std::int32_t is_fortran,
                            gsvTransportTable* table, char* message, std::uint64_t capacity) {
  static_assert(std::is_same_v<decltype(&gsvMpiTransport), gsvTransportModule_t>);
  try {
    return gradsieve::fill(communicator, is_fortran != 0, *table);
  } catch (gradsieve::Error const& error) {
    std::snprintf(message, static_cast<std::size_t>(capacity), "%s", error.what());
    return static_cast<gsvResult_t>(error.code());
  } catch (...) {
    std::snprintf(message, static_cast<std::size_t>(capacity), "no memory for an MPI transport");
    return gsvOutOfMemory;
  }
}
