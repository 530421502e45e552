// SPDX-License-Identifier: Apache-2.0
// Requests: how they start, are waited for and are taken back. The rounds are in nccl_rounds.cpp.
#include "comm/nccl/nccl_messages.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <thread>

#include "comm/nccl/nccl_frame.hpp"
#include "comm/nccl/nccl_handle.hpp"

namespace gradsieve {

namespace {

NcclMessage& message_of(Request& request) noexcept {
  return *std::launder(reinterpret_cast<NcclMessage*>(request.storage));
}

Status refuse(Request& request, Status status) noexcept {
  request.done = true;
  request.num_bytes = 0;
  request.status = status;
  return status;
}

NcclMessage& new_message(Request& request, Channel channel, int peer, std::uint32_t tag) noexcept {
  request.done = false;
  NcclMessage& message = *::new (static_cast<void*>(request.storage)) NcclMessage;
  message.started = NcclMessage::kStarted;
  message.channel = channel;
  message.peer = peer;
  message.tag = tag;
  return message;
}

constexpr Status kTooLong{Code::capacity_exceeded,
                          "a message is longer than the bytes that wait for it"};
constexpr Status kAborted{Code::aborted, "this rank has aborted"};

/// One communicator beside the parent, as small as NCCL makes them.
ncclComm_t split(NcclCommunicator& parent, std::chrono::milliseconds deadline) {
  return make_handle(
      parent.api(), parent.device(), deadline, "ncclCommSplit",
      [api = parent.api(), whole = parent.handle(), rank = parent.rank()](ncclComm_t* made) {
        ncclConfig_t config = blocking_config();
        config.minCTAs = 1;
        config.maxCTAs = 1;
        ncclResult_t result = api.comm_split(whole, 0, rank, made, &config);
        while (result == ncclInProgress) {  // the parent is a non-blocking one
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          if (api.comm_get_async_error(whole, &result) != ncclSuccess) return ncclInternalError;
        }
        return result;
      });
}

void require(cudaError_t error) {
  if (error == cudaSuccess) return;
  throw Error(Code::device_error,
              std::string("make_nccl_transport: CUDA failed: ") + cudaGetErrorString(error));
}

}  // namespace

NcclMessages::NcclMessages(NcclCommunicator& parent, NcclOptions options)
    : communicator_(std::make_unique<NcclCommunicator>(
          parent.api(), split(parent, options.deadline), NcclCommunicator::Ownership::owned,
          options.deadline)) {
  std::size_t const num_ranks = static_cast<std::size_t>(parent.world_size());
  pieces_.reserve(2 * num_ranks);
  incoming_.resize(num_ranks);
  sending_.resize(num_ranks);
  receiving_.resize(num_ranks);
  try {
    allocate(2 * num_ranks * kNcclPieceBytes);
    say_hello(options.deadline);
  } catch (...) {
    release();
    throw;
  }
  communicator_->bound_calls_by(options.call_deadline);
}

NcclMessages::~NcclMessages() { release(); }

void NcclMessages::allocate(std::size_t num_bytes) {
  DeviceScope const scope(communicator_->device());
  require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  require(cudaEventCreateWithFlags(&round_end_, cudaEventDisableTiming));
  staging_ = Buffer(num_bytes, device_memory(), {stream_});
  mirror_ = Buffer(num_bytes, pinned_memory());
}

// What is under way ends by abort() or has ended: only then may its memory go.
void NcclMessages::release() noexcept {
  if (round_under_way_) communicator_->abort();
  DeviceScope const scope(communicator_->device());
  if (stream_ != nullptr) static_cast<void>(cudaStreamSynchronize(stream_));
  mirror_ = {};
  staging_ = {};
  if (round_end_ != nullptr) static_cast<void>(cudaEventDestroy(round_end_));
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
}

/// NCCL connects two ranks when they first send: later it would hold a wait beyond its deadline.
void NcclMessages::say_hello(std::chrono::milliseconds deadline) {
  Deadline const until = Clock::now() + deadline;
  std::size_t const num_ranks = incoming_.size();
  std::vector<Request> requests(2 * num_ranks);
  for (std::size_t peer = 0; peer < num_ranks; ++peer) {
    int const number = static_cast<int>(peer);
    static_cast<void>(send(Channel::control, number, kNcclHelloTag, {}, requests[peer]));
    static_cast<void>(
        receive(Channel::control, number, kNcclHelloTag, {}, requests[num_ranks + peer]));
  }
  Status failure;
  for (Request& request : requests) {
    Status const status = wait(request, until);
    if (failure.ok()) failure = status;
  }
  bytes_sent_ = 0;
  messages_sent_ = 0;
  if (!failure.ok())
    throw Error(
        failure.code(),
        std::string("make_nccl_transport: the ranks cannot be connected: ") + failure.message());
}

Status NcclMessages::check_start(int peer) const noexcept {
  if (peer < 0 || peer >= world_size()) return {Code::invalid_argument, "there is no such rank"};
  return aborted_.load(std::memory_order_acquire) ? kAborted : Status{};
}

Status NcclMessages::send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
                          Request& request) noexcept {
  if (Status const status = check_start(peer); !status.ok()) return refuse(request, status);
  std::lock_guard const lock(mutex_);
  if (!failure_.ok()) return refuse(request, failure_);
  NcclMessage& message = new_message(request, channel, peer, tag);
  message.is_send = true;
  message.content = bytes.data();
  message.num_bytes = bytes.size();
  bytes_sent_.fetch_add(bytes.size(), std::memory_order_relaxed);
  messages_sent_.fetch_add(1, std::memory_order_relaxed);
  append(message);
  if (peer == rank()) {
    keep(peer, channel, tag, bytes);
    finish(message, {});
  }
  return {};
}

Status NcclMessages::receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                             Request& request) noexcept {
  if (Status const status = check_start(peer); !status.ok()) return refuse(request, status);
  std::lock_guard const lock(mutex_);
  if (!failure_.ok()) return refuse(request, failure_);
  NcclMessage& message = new_message(request, channel, peer, tag);
  message.target = bytes.data();
  message.num_bytes = bytes.size();
  append(message);
  static_cast<void>(take_kept(message));
  return {};
}

Status NcclMessages::wait(Request& request, Deadline deadline) noexcept {
  if (request.done) return request.status;
  NcclMessage& message = message_of(request);
  if (message.started != NcclMessage::kStarted)
    return {Code::invalid_usage, "wait() for a request that was not started"};
  for (int turn = 0;; ++turn) {
    {
      std::lock_guard const lock(mutex_);
      if (!message.done) advance();
      if (!message.done && aborted_.load(std::memory_order_acquire)) take_back(message, kAborted);
      if (!message.done && !failure_.ok()) take_back(message, failure_);
      if (!message.done && Clock::now() >= deadline)
        take_back(message, {Code::timeout, "the other rank did not answer in time"});
      if (message.done) {
        request.done = true;
        request.num_bytes = message.moved_bytes;
        request.status = aborted_.load(std::memory_order_acquire) ? kAborted : message.status;
        return request.status;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(turn < 1000 ? 5 : 100));
  }
}

// Without the mutex: a thread may hold it inside NCCL, and this is what gets it out.
void NcclMessages::abort() noexcept {
  aborted_.store(true, std::memory_order_release);
  communicator_->abort();
}

TransportCounters NcclMessages::counters() const noexcept {
  return {bytes_sent_.load(std::memory_order_relaxed),
          messages_sent_.load(std::memory_order_relaxed)};
}

void NcclMessages::append(NcclMessage& message) noexcept {
  message.previous = last_;
  (last_ == nullptr ? first_ : last_->next) = &message;
  last_ = &message;
}

void NcclMessages::remove(NcclMessage& message) noexcept {
  (message.previous == nullptr ? first_ : message.previous->next) = message.next;
  (message.next == nullptr ? last_ : message.next->previous) = message.previous;
  message.previous = message.next = nullptr;
}

void NcclMessages::finish(NcclMessage& message, Status status) noexcept {
  remove(message);
  message.status = status;
  message.done = true;
}

// A round that is under way goes on without it, from staging memory. Only a send of several pieces
// cannot be left: its bytes are its owner's again, and the other side waits for them.
void NcclMessages::take_back(NcclMessage& message, Status status) noexcept {
  bool const incomplete =
      message.is_send && message.begun && message.moved_bytes < message.num_bytes;
  for (Piece& piece : pieces_)
    if (piece.message == &message) piece.message = nullptr;
  for (Incoming& incoming : incoming_)
    if (incoming.receiver == &message) incoming.receiver = nullptr;
  finish(message, status);
  if (incomplete)
    break_off({Code::transport_error, "a message broke off in the middle: make a new transport"});
}

bool NcclMessages::take_kept(NcclMessage& receive) noexcept {
  auto const found = std::find_if(kept_.begin(), kept_.end(), [&](Kept const& kept) {
    return kept.peer == receive.peer && kept.channel == receive.channel && kept.tag == receive.tag;
  });
  if (found == kept_.end()) return false;
  bool const fits = found->bytes.size() <= receive.num_bytes;
  if (fits && !found->bytes.empty())
    std::memcpy(receive.target, found->bytes.data(), found->bytes.size());
  receive.moved_bytes = found->bytes.size();
  finish(receive, fits ? Status{} : kTooLong);
  kept_.erase(found);
  return true;
}

/// For the first receive that waits for it, or for one to come.
void NcclMessages::keep(int peer, Channel channel, std::uint32_t tag, ConstBytes bytes) noexcept {
  try {
    kept_.push_back({peer, channel, tag, {bytes.begin(), bytes.end()}});
  } catch (std::exception const&) {
    break_off({Code::out_of_memory, "no room for a message that nobody has asked for yet"});
    return;
  }
  for (NcclMessage* message = first_; message != nullptr; message = message->next)
    if (!message->is_send && !message->begun && message->peer == peer &&
        message->channel == channel && message->tag == tag) {
      static_cast<void>(take_kept(*message));
      return;
    }
}

}  // namespace gradsieve
