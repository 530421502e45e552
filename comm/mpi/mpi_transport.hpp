// SPDX-License-Identifier: Apache-2.0
// Messages over MPI_Isend, MPI_Improbe and MPI_Imrecv, polled until a deadline.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

#include <mpi.h>

#include "gradsieve/mpi.hpp"

namespace gradsieve {

/// A send or receive under way, in the storage of its Request. Guarded by the transport's mutex.
struct MpiOperation {
  static constexpr std::uint32_t kStarted = 0x4d504930;
  static constexpr int kChunksUnderWay = 32;

  std::uint32_t started = 0;  ///< kStarted, or the request was never handed in
  Channel channel = Channel::data;
  bool is_send = false;
  bool blocked = false;     ///< an earlier operation of the same kind has chunks to come
  bool last_chunk = false;  ///< the last chunk is with MPI
  bool overflow = false;    ///< a receive whose message is longer than its bytes
  bool finished = false;
  int peer = 0;
  int tag = 0;
  std::byte* target = nullptr;
  std::byte* discarded = nullptr;  ///< where a chunk without room goes; owned
  std::byte const* content = nullptr;
  std::uint64_t num_bytes = 0;    ///< of the message, or what the receive has room for
  std::uint64_t moved_bytes = 0;  ///< of the chunks done or with MPI
  std::array<MPI_Request, kChunksUnderWay> chunks;  ///< those with MPI, a ring
  int oldest = 0;                                   ///< its place in the ring
  int num_chunks = 0;                               ///< how many are with MPI
  Status status;
  MpiOperation* previous = nullptr;
  MpiOperation* next = nullptr;

  [[nodiscard]] MPI_Request& oldest_chunk() noexcept { return chunk(0); }
  [[nodiscard]] MPI_Request& next_chunk() noexcept { return chunk(num_chunks); }
  void drop_oldest_chunk() noexcept {
    oldest = (oldest + 1) % kChunksUnderWay;
    --num_chunks;
  }
  [[nodiscard]] bool same_stream(MpiOperation const& other) const noexcept {
    return is_send == other.is_send && channel == other.channel && peer == other.peer &&
           tag == other.tag;
  }

 private:
  [[nodiscard]] MPI_Request& chunk(int age) noexcept {
    return chunks[static_cast<std::size_t>((oldest + age) % kChunksUnderWay)];
  }
};
static_assert(sizeof(MpiOperation) <= Request::kStorageBytes);

class MpiTransport final : public Transport {
 public:
  MpiTransport(MPI_Comm communicator, MpiOptions options);
  ~MpiTransport() override;

  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int world_size() const noexcept override { return world_size_; }
  [[nodiscard]] TransportTraits traits() const noexcept override;

  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override;
  Status receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                 Request& request) noexcept override;
  Status wait(Request& request, Deadline deadline) noexcept override;
  void abort() noexcept override;
  [[nodiscard]] TransportCounters counters() const noexcept override;
  Status dense_all_reduce(TensorView data) noexcept override;

 private:
  [[nodiscard]] MPI_Comm communicator(Channel channel) const noexcept {
    return communicators_[static_cast<std::size_t>(channel)];
  }
  void agree_on_options() const;
  void make_sums_of_halves() noexcept;
  void release_mpi_objects() noexcept;
  [[nodiscard]] Status check_call() const noexcept;
  [[nodiscard]] Status check_start(int peer, std::uint32_t tag) const noexcept;
  void start(MpiOperation& operation) noexcept;
  void poll_all() noexcept;
  void advance(MpiOperation& operation) noexcept;
  [[nodiscard]] int max_chunks(MpiOperation const& operation) const noexcept;
  [[nodiscard]] bool retire_chunks(MpiOperation& operation) noexcept;
  [[nodiscard]] bool send_chunk(MpiOperation& operation) noexcept;
  [[nodiscard]] bool receive_chunk(MpiOperation& operation) noexcept;
  void finish(MpiOperation& operation, Status status) noexcept;
  void unblock_next(MpiOperation const& operation) noexcept;
  void take_back(MpiOperation& operation, Status status) noexcept;

  std::array<MPI_Comm, 2> communicators_{MPI_COMM_NULL, MPI_COMM_NULL};
  MPI_Datatype half_ = MPI_DATATYPE_NULL;
  MPI_Op add_float16_ = MPI_OP_NULL;
  MPI_Op add_bfloat16_ = MPI_OP_NULL;
  int rank_ = 0;
  int world_size_ = 1;
  int chunk_bytes_;
  int max_tag_ = 32767;
  int thread_level_ = MPI_THREAD_SINGLE;
  int process_id_;
  std::thread::id home_thread_;

  std::mutex mutex_;  ///< of all that follows but the atomics
  MpiOperation* first_ = nullptr;
  MpiOperation* last_ = nullptr;
  std::uint64_t num_moves_ = 0;  ///< chunks handed to MPI and taken back from it
  std::atomic<bool> aborted_{false};
  std::atomic<bool> entangled_{
      false};  ///< MPI may still write into bytes that their owner took back
  std::atomic<bool> left_messages_{false};  ///< MPI may hold some that nobody will take
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> messages_sent_{0};
};

}  // namespace gradsieve
