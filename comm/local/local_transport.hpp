// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process. Bytes go from the sender's memory to the receiver's in one
// copy, without a buffer between them and without an allocation.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gradsieve/transport.hpp"

namespace gradsieve {

/// A send or receive under way. It lives in the storage of its Request and is written under the
/// mutex of the mailbox it is addressed to.
struct LocalNode {
  static constexpr std::uint32_t kStarted = 0x4c4f4341;
  enum class State : std::uint8_t { queued, moving, finished };

  std::uint32_t started = 0;  ///< kStarted, or the request was never handed in
  std::uint32_t tag = 0;
  int source = 0;
  int destination = 0;
  int owner = 0;
  Channel channel = Channel::data;
  bool is_send = false;
  State state = State::queued;
  std::byte* target = nullptr;         ///< of a receive
  std::byte const* content = nullptr;  ///< of a send
  std::uint64_t num_bytes = 0;         ///< of the message, or what the receive has room for
  Status status;
  LocalNode* previous = nullptr;
  LocalNode* next = nullptr;
  std::condition_variable changed;

  [[nodiscard]] bool matches(LocalNode const& other) const noexcept {
    return is_send != other.is_send && source == other.source && tag == other.tag &&
           channel == other.channel;
  }
};
static_assert(sizeof(LocalNode) <= Request::kStorageBytes);

/// Sends and receives addressed to one rank that have found no partner yet, oldest first.
class LocalMailbox {
 public:
  std::mutex mutex;

  [[nodiscard]] LocalNode* find_partner(LocalNode const& node) const noexcept;
  void append(LocalNode& node) noexcept;
  void remove(LocalNode& node) noexcept;
  /// Wakes those of the queued whose owner is `rank`.
  void wake(int rank) noexcept;

 private:
  LocalNode* first_ = nullptr;
  LocalNode* last_ = nullptr;
};

/// What the ranks of a group have in common.
struct LocalShared {
  explicit LocalShared(int world_size);

  std::vector<LocalMailbox> mailboxes;  ///< one per rank
  int process_id;
};

class LocalTransport final : public Transport {
 public:
  LocalTransport(LocalShared& group, int rank) noexcept;

  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int world_size() const noexcept override;
  [[nodiscard]] TransportTraits traits() const noexcept override { return {.name = "local"}; }

  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override;
  Status receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                 Request& request) noexcept override;
  Status wait(Request& request, Deadline deadline) noexcept override;
  void abort() noexcept override;
  [[nodiscard]] TransportCounters counters() const noexcept override;

 private:
  [[nodiscard]] Status check(int peer) const noexcept;
  void start(LocalNode& node) noexcept;

  LocalShared& group_;
  int rank_;
  std::atomic<bool> aborted_{false};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> messages_sent_{0};
};

struct LocalGroup::Impl {
  explicit Impl(int world_size);

  LocalShared shared;
  std::vector<std::unique_ptr<LocalTransport>> transports;
};

}  // namespace gradsieve
