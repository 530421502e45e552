// SPDX-License-Identifier: Apache-2.0
#include "bindings/c/table_transport.hpp"

#include <algorithm>
#include <new>

#include <unistd.h>

#include "core/foreign_enum.hpp"

namespace gradsieve::c {
namespace {

/// What the storage of a Request holds while it is under way.
struct TableOperation {
  static constexpr std::uint64_t kStarted = 0x5441424c45303031;

  gsvRequest request = {};
  std::uint64_t capacity_bytes = 0;
  std::uint64_t started = kStarted;  ///< or the request was never handed in
};
static_assert(sizeof(TableOperation) <= Request::kStorageBytes);

TableOperation& operation_of(Request& request) noexcept {
  return *std::launder(reinterpret_cast<TableOperation*>(request.storage));
}

Status end(Request& request, Status status) noexcept {
  request.done = true;
  request.status = status;
  return status;
}

Code code_of(gsvResult_t const& result) noexcept {
  return gradsieve::code_of(result, Code::transport_error);
}

/// What a table returned. Its sentence stands as long as its transport does.
Status status_of(Code code, char const* message, char const* otherwise) noexcept {
  if (code == Code::ok) return {};
  return {code, message != nullptr ? message : otherwise};
}

}  // namespace

TableTransport::TableTransport(gsvTransportTable const& table)
    : table_(table), name_(table.name != nullptr ? table.name : "table"), process_id_(::getpid()) {
  if (table.world_size < 1 || table.rank < 0 || table.rank >= table.world_size) {
    throw Error(Code::invalid_argument,
                "a transport table says rank " + std::to_string(table.rank) + " of " +
                    std::to_string(table.world_size) + "; expected 0 <= rank < world_size");
  }
  if (table.send == nullptr || table.receive == nullptr || table.wait == nullptr ||
      table.abort == nullptr) {
    throw Error(Code::invalid_argument,
                "a transport table lacks a function; expected send, receive, wait and abort");
  }
}

TableTransport::~TableTransport() {
  if (table_.release != nullptr) table_.release(table_.self);
}

TransportTraits TableTransport::traits() const noexcept {
  return {.name = name_,
          .any_thread = (table_.flags & gsvTransportAnyThread) != 0,
          .device_memory = (table_.flags & gsvTransportDeviceMemory) != 0,
          .has_dense_all_reduce = table_.dense_all_reduce != nullptr};
}

Status TableTransport::check(int peer) const noexcept {
  if (::getpid() != process_id_)
    return {Code::forked_child, "a transport belongs to the process that made it"};
  if (peer < 0 || peer >= world_size()) return {Code::invalid_argument, "there is no such rank"};
  if (aborted_.load(std::memory_order_acquire)) return {Code::aborted, "this rank has aborted"};
  return {};
}

Status TableTransport::send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
                            Request& request) noexcept {
  request.num_bytes = 0;
  if (Status const status = check(peer); !status.ok()) return end(request, status);
  request.done = false;
  auto& operation = *::new (static_cast<void*>(request.storage)) TableOperation;
  operation.capacity_bytes = bytes.size();
  Code const code = code_of(table_.send(table_.self, static_cast<std::int32_t>(channel), peer, tag,
                                        bytes.data(), bytes.size(), &operation.request));
  if (code != Code::ok)
    return end(request,
               status_of(code, operation.request.message, "the transport table's send failed"));
  bytes_sent_.fetch_add(bytes.size(), std::memory_order_relaxed);
  messages_sent_.fetch_add(1, std::memory_order_relaxed);
  return {};
}

Status TableTransport::receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                               Request& request) noexcept {
  request.num_bytes = 0;
  if (Status const status = check(peer); !status.ok()) return end(request, status);
  request.done = false;
  auto& operation = *::new (static_cast<void*>(request.storage)) TableOperation;
  operation.capacity_bytes = bytes.size();
  Code const code = code_of(table_.receive(table_.self, static_cast<std::int32_t>(channel), peer,
                                           tag, bytes.data(), bytes.size(), &operation.request));
  if (code == Code::ok) return {};
  return end(request,
             status_of(code, operation.request.message, "the transport table's receive failed"));
}

Status TableTransport::wait(Request& request, Deadline deadline) noexcept {
  if (request.done) return request.status;
  TableOperation& operation = operation_of(request);
  if (operation.started != TableOperation::kStarted)
    return {Code::invalid_usage, "wait() for a request that was not started"};
  if (::getpid() != process_id_)
    return {Code::forked_child, "a transport belongs to the process that made it"};
  auto const left = std::chrono::nanoseconds(deadline - Clock::now()).count();
  Code const code = code_of(
      table_.wait(table_.self, &operation.request, static_cast<std::uint64_t>(std::max(left, 0L))));
  request.num_bytes = operation.request.num_bytes;
  if (code == Code::ok && request.num_bytes > operation.capacity_bytes) {
    request.num_bytes = 0;
    return end(request, {Code::transport_error,
                         "the transport table says more bytes came than there was room for"});
  }
  return end(request,
             status_of(code, operation.request.message, "the transport table's wait failed"));
}

void TableTransport::abort() noexcept {
  aborted_.store(true, std::memory_order_release);
  if (::getpid() == process_id_) table_.abort(table_.self);
}

TransportCounters TableTransport::counters() const noexcept {
  return {bytes_sent_.load(std::memory_order_relaxed),
          messages_sent_.load(std::memory_order_relaxed)};
}

Status TableTransport::dense_all_reduce(TensorView data) noexcept {
  if (table_.dense_all_reduce == nullptr) return Transport::dense_all_reduce(data);
  GRADSIEVE_RETURN_IF_ERROR(check(rank()));
  Code const code = code_of(table_.dense_all_reduce(table_.self, data.data, data.num_elements,
                                                    static_cast<std::uint32_t>(data.dtype)));
  return status_of(code, nullptr, "the transport table's dense_all_reduce failed");
}

}  // namespace gradsieve::c
