// SPDX-License-Identifier: Apache-2.0
// Messages of host memory over NCCL, for ranks that have nothing but a communicator.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gradsieve/memory.hpp"
#include "gradsieve/nccl.hpp"

#include "comm/nccl/nccl_communicator.hpp"

namespace gradsieve {

/// A send or receive under way, in the storage of its Request. Guarded by the transport's mutex.
struct NcclMessage {
  static constexpr std::uint32_t kStarted = 0x4e434d30;

  std::uint32_t started = 0;  ///< kStarted, or the request was never handed in
  std::uint32_t tag = 0;
  int peer = 0;
  Channel channel = Channel::data;
  bool is_send = false;
  bool begun = false;  ///< a piece of it is or was with NCCL, or the message for it is coming in
  bool done = false;
  std::byte* target = nullptr;
  std::byte const* content = nullptr;
  std::uint64_t num_bytes = 0;    ///< of the message, or what the receive has room for
  std::uint64_t moved_bytes = 0;  ///< of a send, those with NCCL
  Status status;
  NcclMessage* previous = nullptr;
  NcclMessage* next = nullptr;
};
static_assert(sizeof(NcclMessage) <= Request::kStorageBytes);

/// How it works. NCCL has no tags, and both sides of a transfer must know its length. So from each
/// rank to each other there is one sequence of pieces: a message begins with a frame of fixed size,
/// which holds its length, channel, tag and first bytes; the rest follows in pieces whose sizes
/// both sides know by then. A *round* is one group of ncclSend and ncclRecv with the next piece of
/// every such sequence that this rank has something for, over staging memory on a stream of its
/// own. Rounds run while somebody waits. A message that nobody has asked for yet is kept.
///
/// What follows from it: a round ends when all its partners have joined it. So a wait may last
/// until the ranks of other messages started before have come, and where one is missing, others
/// seem so too. Patterns in which every rank starts its sends and receives and then waits for them
/// come to an end.
class NcclMessages final : public Transport {
 public:
  /// `parent` is split for a communicator of our own, so that abort() is possible and nothing gets
  /// between the owner's calls. Collective; connects all ranks, within the deadline.
  NcclMessages(NcclCommunicator& parent, NcclOptions options);
  ~NcclMessages() override;

  [[nodiscard]] int rank() const noexcept override { return communicator_->rank(); }
  [[nodiscard]] int world_size() const noexcept override { return communicator_->world_size(); }
  [[nodiscard]] TransportTraits traits() const noexcept override { return {.name = "nccl"}; }

  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override;
  Status receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                 Request& request) noexcept override;
  Status wait(Request& request, Deadline deadline) noexcept override;
  void abort() noexcept override;
  [[nodiscard]] TransportCounters counters() const noexcept override;

 private:
  /// Part of a round.
  struct Piece {
    int peer = 0;
    bool is_send = false;
    std::size_t num_bytes = 0;
    NcclMessage* message = nullptr;  ///< a send's, until it is taken back
  };
  /// The message that is coming in from a rank.
  struct Incoming {
    bool under_way = false;
    bool kept = false;  ///< nobody has asked for it yet
    Channel channel = Channel::data;
    std::uint32_t tag = 0;
    std::uint64_t num_bytes = 0;
    std::uint64_t moved_bytes = 0;
    NcclMessage* receiver = nullptr;  ///< null if kept, or if it was taken back
    std::vector<std::byte> bytes;     ///< if kept
  };
  struct Kept {
    int peer;
    Channel channel;
    std::uint32_t tag;
    std::vector<std::byte> bytes;
  };

  void allocate(std::size_t num_bytes);
  void release() noexcept;
  void say_hello(std::chrono::milliseconds deadline);
  [[nodiscard]] Status check_start(int peer) const noexcept;
  void append(NcclMessage& message) noexcept;
  void remove(NcclMessage& message) noexcept;
  void finish(NcclMessage& message, Status status) noexcept;
  void take_back(NcclMessage& message, Status status) noexcept;
  [[nodiscard]] bool take_kept(NcclMessage& receive) noexcept;
  void keep(int peer, Channel channel, std::uint32_t tag, ConstBytes bytes) noexcept;

  void advance() noexcept;
  void collect_pieces() noexcept;
  void start_round() noexcept;
  [[nodiscard]] ncclResult_t enqueue_round(ncclComm_t handle) noexcept;
  [[nodiscard]] ncclResult_t enqueue_group(ncclComm_t handle) noexcept;
  void finish_round() noexcept;
  [[nodiscard]] std::size_t next_send(NcclMessage& message, std::byte* slot) noexcept;
  void take_in(int peer, ConstBytes piece) noexcept;
  [[nodiscard]] ConstBytes begin_incoming(int peer, Incoming& incoming, ConstBytes frame) noexcept;
  void end_incoming(int peer, Incoming& incoming) noexcept;
  void break_off(Status failure) noexcept;
  [[nodiscard]] std::size_t slot_of(Piece const& piece) const noexcept;

  std::unique_ptr<NcclCommunicator> communicator_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t round_end_ = nullptr;
  Buffer staging_;  ///< on the device, a slot for each rank and direction
  Buffer mirror_;   ///< the same in pinned host memory
  std::atomic<bool> aborted_{false};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> messages_sent_{0};

  std::mutex mutex_;  ///< of what follows
  Status failure_;    ///< why no round will come any more
  bool round_under_way_ = false;
  std::vector<Piece> pieces_;  ///< of that round
  std::vector<Incoming> incoming_;
  std::vector<Kept> kept_;
  std::vector<bool> sending_;    ///< scratch: the round has a piece to this rank
  std::vector<bool> receiving_;  ///< and one from it
  NcclMessage* first_ = nullptr;
  NcclMessage* last_ = nullptr;
};

}  // namespace gradsieve
