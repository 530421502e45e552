// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_transport.hpp"

#include <algorithm>
#include <chrono>
#include <climits>
#include <new>
#include <utility>

#include <sched.h>
#include <unistd.h>

#include "comm/mpi/chunks.hpp"

namespace gradsieve {

namespace {

/// How long after its deadline a receive may take to end the chunk that is just coming in.
constexpr std::chrono::milliseconds kChunkGrace{100};

MpiOperation& operation_of(Request& request) noexcept {
  return *std::launder(reinterpret_cast<MpiOperation*>(request.storage));
}

Status refuse(Request& request, Status status) noexcept {
  request.done = true;
  request.num_bytes = 0;
  request.status = status;
  return status;
}

/// A chunk that is just coming in gets a little longer: it cannot be taken back.
bool is_late(MpiOperation const& operation, Deadline deadline) noexcept {
  bool const coming_in = !operation.is_send && operation.num_chunks > 0;
  Clock::time_point const now = Clock::now();
  return now >= deadline && !(coming_in && now - deadline < kChunkGrace);
}

/// Spins while an answer may be near, then lets other ranks on the same core run, then sleeps, the
/// longer the longer nothing has moved.
class Backoff {
 public:
  void pause() noexcept {
    ++count_;
    if (count_ < 50) return;
    if (count_ < kSleeping) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(count_ < 5000 ? 20 : 200));
    }
  }
  void moved() noexcept { count_ = std::min(count_, kSleeping); }

 private:
  static constexpr int kSleeping = 500;
  int count_ = 0;
};

}  // namespace

// The process comes first: in a forked child even asking MPI is not safe.
Status MpiTransport::check_call() const noexcept {
  if (::getpid() != process_id_)
    return {Code::forked_child, "a transport belongs to the process that made it"};
  if (thread_level_ < MPI_THREAD_SERIALIZED && std::this_thread::get_id() != home_thread_)
    return {Code::invalid_usage,
            "MPI was initialised for one thread: call from the one that initialised it"};
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return {Code::invalid_usage, "MPI is finalised"};
  if (aborted_.load(std::memory_order_acquire)) return {Code::aborted, "this rank has aborted"};
  if (entangled_.load(std::memory_order_acquire))
    return {Code::transport_error, "a message broke off in the middle: make a new transport"};
  return {};
}

Status MpiTransport::check_start(int peer, std::uint32_t tag) const noexcept {
  GRADSIEVE_RETURN_IF_ERROR(check_call());
  if (peer < 0 || peer >= world_size_) return {Code::invalid_argument, "there is no such rank"};
  if (tag > static_cast<std::uint32_t>(max_tag_))
    return {Code::invalid_argument, "a tag is beyond what this MPI allows (MPI_TAG_UB)"};
  return {};
}

Status MpiTransport::send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
                          Request& request) noexcept {
  if (Status const status = check_start(peer, tag); !status.ok()) return refuse(request, status);
  request.done = false;
  MpiOperation& operation = *::new (static_cast<void*>(request.storage)) MpiOperation;
  operation.channel = channel;
  operation.is_send = true;
  operation.peer = peer;
  operation.tag = static_cast<int>(tag);
  operation.content = bytes.data();
  operation.num_bytes = bytes.size();
  bytes_sent_.fetch_add(bytes.size(), std::memory_order_relaxed);
  messages_sent_.fetch_add(1, std::memory_order_relaxed);
  start(operation);
  return {};
}

Status MpiTransport::receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                             Request& request) noexcept {
  if (Status const status = check_start(peer, tag); !status.ok()) return refuse(request, status);
  request.done = false;
  MpiOperation& operation = *::new (static_cast<void*>(request.storage)) MpiOperation;
  operation.channel = channel;
  operation.peer = peer;
  operation.tag = static_cast<int>(tag);
  operation.target = bytes.data();
  operation.num_bytes = bytes.size();
  start(operation);
  return {};
}

// Two messages of one stream must not mix their chunks: the later one waits until the last chunk of
// the earlier is with MPI, which keeps the order from there on.
void MpiTransport::start(MpiOperation& operation) noexcept {
  operation.started = MpiOperation::kStarted;
  std::lock_guard const lock(mutex_);
  for (MpiOperation* other = first_; other != nullptr; other = other->next)
    if (operation.same_stream(*other) && !other->last_chunk) operation.blocked = true;
  operation.previous = last_;
  (last_ == nullptr ? first_ : last_->next) = &operation;
  last_ = &operation;
  advance(operation);
}

// Every wait moves all operations: a rank that waits for a receive may owe others the next chunk.
void MpiTransport::poll_all() noexcept {
  for (MpiOperation* operation = first_; operation != nullptr;) {
    MpiOperation* const next = operation->next;
    advance(*operation);
    operation = next;
  }
}

void MpiTransport::advance(MpiOperation& operation) noexcept {
  while (!operation.blocked && !operation.finished) {
    if (!retire_chunks(operation)) return;
    if (operation.last_chunk) {
      if (operation.num_chunks > 0) return;
      bool const fits = !operation.overflow;
      finish(operation, fits ? Status{}
                             : Status{Code::capacity_exceeded,
                                      "a message is longer than the bytes that wait for it"});
      return;
    }
    if (operation.num_chunks >= max_chunks(operation)) return;
    if (!(operation.is_send ? send_chunk(operation) : receive_chunk(operation))) return;
    ++num_moves_;
    if (operation.last_chunk) unblock_next(operation);
  }
}

/// How many chunks may be with MPI now. The first of a longer message goes alone: the others follow
/// once its receiver has taken it. One that is received for nothing has a buffer to itself.
int MpiTransport::max_chunks(MpiOperation const& operation) const noexcept {
  bool const alone = operation.is_send
                         ? operation.moved_bytes <= static_cast<std::uint64_t>(chunk_bytes_)
                         : operation.overflow;
  return alone ? 1 : MpiOperation::kChunksUnderWay;
}

/// Takes the chunks that are through off the ring, the oldest first; false if MPI reports an error.
bool MpiTransport::retire_chunks(MpiOperation& operation) noexcept {
  while (operation.num_chunks > 0) {
    int done = 0;
    int const error = MPI_Test(&operation.oldest_chunk(), &done, MPI_STATUS_IGNORE);
    if (error == MPI_SUCCESS && done == 0) break;
    operation.drop_oldest_chunk();
    ++num_moves_;
    if (error != MPI_SUCCESS) {
      take_back(operation, {Code::transport_error, "MPI reports an error of a message"});
      return false;
    }
    if (operation.num_chunks == 0) delete[] std::exchange(operation.discarded, nullptr);
  }
  return true;
}

// MPI may hold what nobody has asked for yet at its receiver, in memory that nobody has counted. So
// the first chunk of a longer message waits until it is taken (a synchronous send). The chunks
// themselves are below the length from which an MPI asks the receiver for each: such a question
// stands in the queue behind what flows the other way, and both ways together would go no faster
// than one.
bool MpiTransport::send_chunk(MpiOperation& operation) noexcept {
  Chunk const chunk = chunk_at(operation.num_bytes, chunk_bytes_, operation.moved_bytes);
  auto const start = chunk.offset_bytes == 0 && !chunk.last ? MPI_Issend : MPI_Isend;
  if (start(operation.content + chunk.offset_bytes, chunk.num_bytes, MPI_BYTE, operation.peer,
            operation.tag, communicator(operation.channel),
            &operation.next_chunk()) != MPI_SUCCESS) {
    take_back(operation, {Code::transport_error, "MPI cannot send a message"});
    return false;
  }
  ++operation.num_chunks;
  operation.moved_bytes += static_cast<std::uint64_t>(chunk.num_bytes);
  operation.last_chunk = chunk.last;
  return true;
}

// The length of a chunk is known before it is received. So a message that is too long is never
// stored, and its rest does not stay behind to be taken for the next message. It is received for
// nothing rather than truncated: an MPI may abort the program for a truncated message, whatever the
// communicator's error handler.
bool MpiTransport::receive_chunk(MpiOperation& operation) noexcept {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status envelope;
  int error = MPI_Improbe(operation.peer, operation.tag, communicator(operation.channel), &found,
                          &message, &envelope);
  if (error == MPI_SUCCESS && found == 0) return false;
  int count = 0;
  if (error == MPI_SUCCESS) error = MPI_Get_count(&envelope, MPI_BYTE, &count);
  std::uint64_t const chunk_bytes = static_cast<std::uint64_t>(count);
  std::byte* target = operation.target + operation.moved_bytes;
  if (operation.overflow || chunk_bytes > operation.num_bytes - operation.moved_bytes) {
    operation.overflow = true;
    target = operation.discarded =
        new (std::nothrow) std::byte[static_cast<std::size_t>(chunk_bytes)];
  }
  if (error == MPI_SUCCESS && operation.overflow && target == nullptr) {
    take_back(operation,
              {Code::out_of_memory, "no memory to put a message that is too long out of the way"});
    return false;
  }
  if (error == MPI_SUCCESS)
    error = MPI_Imrecv(target, count, MPI_BYTE, &message, &operation.next_chunk());
  if (error != MPI_SUCCESS) {
    take_back(operation, {Code::transport_error, "MPI cannot receive a message"});
    return false;
  }
  ++operation.num_chunks;
  operation.moved_bytes += chunk_bytes;
  operation.last_chunk = count < chunk_bytes_;
  return true;
}

void MpiTransport::finish(MpiOperation& operation, Status status) noexcept {
  if (!operation.last_chunk) unblock_next(operation);
  (operation.previous == nullptr ? first_ : operation.previous->next) = operation.next;
  (operation.next == nullptr ? last_ : operation.next->previous) = operation.previous;
  operation.status = status;
  operation.finished = true;
}

void MpiTransport::unblock_next(MpiOperation const& operation) noexcept {
  for (MpiOperation* later = operation.next; later != nullptr; later = later->next) {
    if (operation.same_stream(*later)) {
      later->blocked = false;
      return;
    }
  }
}

/// Ends an operation before its time. What MPI still holds, or is yet to get, is left to it.
void MpiTransport::take_back(MpiOperation& operation, Status status) noexcept {
  left_messages_.store(true, std::memory_order_release);
  // Bytes of our own are given up for lost: MPI may still write them.
  bool const own_bytes = operation.discarded != nullptr && operation.num_chunks == 1;
  if (operation.num_chunks > 0 && !operation.is_send && !own_bytes) {
    entangled_.store(true, std::memory_order_release);
  }
  while (operation.num_chunks > 0) {
    MPI_Request_free(&operation.oldest_chunk());
    operation.drop_oldest_chunk();
  }
  finish(operation, status);
}

Status MpiTransport::wait(Request& request, Deadline deadline) noexcept {
  if (request.done) return request.status;
  MpiOperation& operation = operation_of(request);
  if (operation.started != MpiOperation::kStarted)
    return {Code::invalid_usage, "wait() for a request that was not started"};
  Status const call = check_call();
  bool const may_touch =
      call.ok() || call.code() == Code::aborted || call.code() == Code::transport_error;
  if (!may_touch) return call;

  Backoff backoff;
  for (;;) {
    std::unique_lock lock(mutex_);
    std::uint64_t const num_moves = num_moves_;
    if (!operation.finished && call.ok()) poll_all();
    if (num_moves_ != num_moves) backoff.moved();
    bool const aborted = aborted_.load(std::memory_order_acquire);
    if (!operation.finished && (aborted || !call.ok() || is_late(operation, deadline))) {
      take_back(operation,
                !call.ok() ? call : Status{Code::timeout, "the other rank did not answer in time"});
    }
    if (operation.finished) {
      request.done = true;
      request.num_bytes = operation.is_send ? operation.num_bytes : operation.moved_bytes;
      request.status = aborted ? Status{Code::aborted, "this rank has aborted"} : operation.status;
      return request.status;
    }
    lock.unlock();
    backoff.pause();
  }
}

void MpiTransport::abort() noexcept { aborted_.store(true, std::memory_order_release); }

TransportCounters MpiTransport::counters() const noexcept {
  return {bytes_sent_.load(std::memory_order_relaxed),
          messages_sent_.load(std::memory_order_relaxed)};
}

TransportTraits MpiTransport::traits() const noexcept {
  return {.name = "mpi",
          .any_thread = thread_level_ >= MPI_THREAD_MULTIPLE,
          .has_dense_all_reduce = true};
}

}  // namespace gradsieve
