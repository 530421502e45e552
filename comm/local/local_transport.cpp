// SPDX-License-Identifier: Apache-2.0
#include "comm/local/local_transport.hpp"

#include <cstring>
#include <new>
#include <string>

#include <unistd.h>

namespace gradsieve {

namespace {

LocalNode& node_of(Request& request) noexcept {
  return *std::launder(reinterpret_cast<LocalNode*>(request.storage));
}

/// Ends a request that never got under way; wait() then says the same.
Status refuse(Request& request, Status status) noexcept {
  request.done = true;
  request.num_bytes = 0;
  request.status = status;
  return status;
}

/// The message into the receiver's memory, or an error if it has no room for all of it.
void deliver(LocalNode const& send, LocalNode const& receive, Status& receive_status) noexcept {
  if (send.num_bytes > receive.num_bytes) {
    receive_status = {Code::capacity_exceeded,
                      "a message is longer than the bytes that wait for it"};
  } else if (send.num_bytes != 0) {
    std::memcpy(receive.target, send.content, static_cast<std::size_t>(send.num_bytes));
  }
}

}  // namespace

LocalNode* LocalMailbox::find_partner(LocalNode const& node) const noexcept {
  for (LocalNode* other = first_; other != nullptr; other = other->next)
    if (node.matches(*other)) return other;
  return nullptr;
}

void LocalMailbox::append(LocalNode& node) noexcept {
  node.previous = last_;
  node.next = nullptr;
  (last_ == nullptr ? first_ : last_->next) = &node;
  last_ = &node;
}

void LocalMailbox::remove(LocalNode& node) noexcept {
  (node.previous == nullptr ? first_ : node.previous->next) = node.next;
  (node.next == nullptr ? last_ : node.next->previous) = node.previous;
  node.previous = node.next = nullptr;
}

void LocalMailbox::wake(int rank) noexcept {
  for (LocalNode* node = first_; node != nullptr; node = node->next)
    if (node->owner == rank) node->changed.notify_all();
}

LocalTransport::LocalTransport(LocalShared& group, int rank) noexcept
    : group_(group), rank_(rank) {}

int LocalTransport::world_size() const noexcept {
  return static_cast<int>(group_.mailboxes.size());
}

Status LocalTransport::check(int peer) const noexcept {
  // The threads that hold the mutexes do not exist in a forked child: ask before locking one.
  if (::getpid() != group_.process_id)
    return {Code::forked_child, "a transport belongs to the process that made it"};
  if (peer < 0 || peer >= world_size()) return {Code::invalid_argument, "there is no such rank"};
  if (aborted_.load(std::memory_order_acquire)) return {Code::aborted, "this rank has aborted"};
  return {};
}

Status LocalTransport::send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
                            Request& request) noexcept {
  if (Status const status = check(peer); !status.ok()) return refuse(request, status);
  request.done = false;
  LocalNode& node = *::new (static_cast<void*>(request.storage)) LocalNode;
  node.source = rank_;
  node.destination = peer;
  node.tag = tag;
  node.channel = channel;
  node.is_send = true;
  node.content = bytes.data();
  node.num_bytes = bytes.size();
  bytes_sent_.fetch_add(bytes.size(), std::memory_order_relaxed);
  messages_sent_.fetch_add(1, std::memory_order_relaxed);
  start(node);
  return {};
}

Status LocalTransport::receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                               Request& request) noexcept {
  if (Status const status = check(peer); !status.ok()) return refuse(request, status);
  request.done = false;
  LocalNode& node = *::new (static_cast<void*>(request.storage)) LocalNode;
  node.source = peer;
  node.destination = rank_;
  node.tag = tag;
  node.channel = channel;
  node.target = bytes.data();
  node.num_bytes = bytes.size();
  start(node);
  return {};
}

// Whoever comes second does the copy: neither side then depends on the other being in wait(). The
// mutex is free meanwhile, so that messages of different senders move at the same time.
void LocalTransport::start(LocalNode& node) noexcept {
  node.started = LocalNode::kStarted;
  node.owner = rank_;
  LocalMailbox& mailbox = group_.mailboxes[static_cast<std::size_t>(node.destination)];
  std::unique_lock lock(mailbox.mutex);
  LocalNode* const partner = mailbox.find_partner(node);
  if (partner == nullptr) {
    mailbox.append(node);
    return;
  }
  mailbox.remove(*partner);
  partner->state = LocalNode::State::moving;
  LocalNode& sending = node.is_send ? node : *partner;
  LocalNode& receiving = node.is_send ? *partner : node;
  lock.unlock();

  Status receive_status;
  deliver(sending, receiving, receive_status);

  lock.lock();
  receiving.status = receive_status;
  receiving.num_bytes = sending.num_bytes;
  node.state = LocalNode::State::finished;
  partner->state = LocalNode::State::finished;
  // Under the mutex: once it is free the partner may return from wait() and reuse the node.
  partner->changed.notify_all();
}

Status LocalTransport::wait(Request& request, Deadline deadline) noexcept {
  if (request.done) return request.status;
  LocalNode& node = node_of(request);
  if (node.started != LocalNode::kStarted)
    return {Code::invalid_usage, "wait() for a request that was not started"};
  if (::getpid() != group_.process_id)
    return {Code::forked_child, "a transport belongs to the process that made it"};

  LocalMailbox& mailbox = group_.mailboxes[static_cast<std::size_t>(node.destination)];
  std::unique_lock lock(mailbox.mutex);
  while (node.state != LocalNode::State::finished) {
    bool const aborted = aborted_.load(std::memory_order_acquire);
    bool const late = Clock::now() >= deadline;
    // While its bytes move a request cannot be taken back; that ends without anybody's help.
    if (node.state == LocalNode::State::queued && (aborted || late)) {
      mailbox.remove(node);
      node.status = aborted ? Status{Code::aborted, "this rank has aborted"}
                            : Status{Code::timeout, "the other rank did not answer in time"};
      node.state = LocalNode::State::finished;
    } else if (node.state == LocalNode::State::moving) {
      node.changed.wait(lock);
    } else {
      node.changed.wait_until(lock, deadline);
    }
  }
  request.done = true;
  request.num_bytes = node.num_bytes;
  request.status = node.status;
  if (aborted_.load(std::memory_order_acquire))
    request.status = {Code::aborted, "this rank has aborted"};
  return request.status;
}

void LocalTransport::abort() noexcept {
  if (::getpid() != group_.process_id) return;
  aborted_.store(true, std::memory_order_release);
  for (LocalMailbox& mailbox : group_.mailboxes) {
    std::lock_guard const lock(mailbox.mutex);
    mailbox.wake(rank_);
  }
}

TransportCounters LocalTransport::counters() const noexcept {
  return {bytes_sent_.load(std::memory_order_relaxed),
          messages_sent_.load(std::memory_order_relaxed)};
}

LocalShared::LocalShared(int world_size)
    : mailboxes(static_cast<std::size_t>(world_size)), process_id(::getpid()) {}

LocalGroup::Impl::Impl(int world_size) : shared(world_size) {
  transports.reserve(shared.mailboxes.size());
  for (int rank = 0; rank < world_size; ++rank)
    transports.push_back(std::make_unique<LocalTransport>(shared, rank));
}

LocalGroup::LocalGroup(int world_size) {
  if (world_size < 1) {
    throw Error(Code::invalid_argument,
                "a local group has at least 1 rank; world_size is " + std::to_string(world_size));
  }
  impl_ = std::make_unique<Impl>(world_size);
}

LocalGroup::~LocalGroup() = default;

int LocalGroup::world_size() const noexcept { return static_cast<int>(impl_->transports.size()); }

Transport& LocalGroup::transport(int rank) noexcept {
  return *impl_->transports[static_cast<std::size_t>(rank)];
}

}  // namespace gradsieve
