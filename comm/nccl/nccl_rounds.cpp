// SPDX-License-Identifier: Apache-2.0
// The rounds in which pieces of messages travel.
#include <algorithm>
#include <cstring>
#include <exception>

#include "comm/nccl/nccl_frame.hpp"
#include "comm/nccl/nccl_messages.hpp"

namespace gradsieve {

namespace {

std::size_t rest_of(std::uint64_t num_bytes, std::uint64_t moved_bytes) noexcept {
  return static_cast<std::size_t>(
      std::min<std::uint64_t>(num_bytes - moved_bytes, kNcclPieceBytes));
}

}  // namespace

// The requests that still wait find `failure_`; nothing that NCCL touches is theirs.
void NcclMessages::break_off(Status failure) noexcept {
  if (!failure_.ok()) return;
  failure_ = failure;
  communicator_->abort();
}

void NcclMessages::advance() noexcept {
  if (!failure_.ok() || aborted_.load(std::memory_order_acquire)) return;
  if (!round_under_way_) start_round();
  if (!round_under_way_) return;
  cudaError_t const state = cudaEventQuery(round_end_);
  if (state != cudaSuccess) static_cast<void>(cudaGetLastError());  // "not ready" is no error
  Status const status = communicator_->check();
  if (!status.ok()) {
    break_off(status);
  } else if (state == cudaSuccess) {
    finish_round();
  } else if (state != cudaErrorNotReady) {
    break_off({Code::device_error, "a copy of messages failed on the device"});
  }
}

std::size_t NcclMessages::slot_of(Piece const& piece) const noexcept {
  std::size_t const index =
      static_cast<std::size_t>(piece.peer) + (piece.is_send ? 0 : incoming_.size());
  return index * kNcclPieceBytes;
}

/// From each rank and to each rank at most one piece: of the oldest message.
void NcclMessages::collect_pieces() noexcept {
  pieces_.clear();
  std::fill(sending_.begin(), sending_.end(), false);
  std::fill(receiving_.begin(), receiving_.end(), false);
  for (std::size_t peer = 0; peer < incoming_.size(); ++peer) {
    Incoming const& incoming = incoming_[peer];
    if (!incoming.under_way) continue;
    receiving_[peer] = true;
    std::size_t const rest = rest_of(incoming.num_bytes, incoming.moved_bytes);
    pieces_.push_back({static_cast<int>(peer), false, rest, nullptr});
  }
  for (NcclMessage* message = first_; message != nullptr; message = message->next) {
    std::size_t const peer = static_cast<std::size_t>(message->peer);
    if (message->peer == rank()) continue;  // such messages are kept, not sent
    if (message->is_send && !sending_[peer]) {
      sending_[peer] = true;
      Piece piece{message->peer, true, 0, message};
      piece.num_bytes = next_send(*message, mirror_.data() + slot_of(piece));
      pieces_.push_back(piece);
    } else if (!message->is_send && !receiving_[peer]) {
      receiving_[peer] = true;
      pieces_.push_back({message->peer, false, kNcclFrameBytes, nullptr});
    }
  }
}

/// The next piece of a send into its slot: how long it is.
std::size_t NcclMessages::next_send(NcclMessage& message, std::byte* slot) noexcept {
  std::size_t offset = 0;
  std::size_t count = rest_of(message.num_bytes, message.moved_bytes);
  std::size_t piece_bytes = count;
  if (!message.begun) {
    NcclFrameHeader header;
    header.channel = static_cast<std::uint32_t>(message.channel);
    header.tag = message.tag;
    header.num_bytes = message.num_bytes;
    std::memcpy(slot, &header, sizeof header);
    offset = sizeof header;
    count = std::min(count, kNcclFrameRoom);
    piece_bytes = kNcclFrameBytes;
    message.begun = true;
  }
  if (count != 0) std::memcpy(slot + offset, message.content + message.moved_bytes, count);
  message.moved_bytes += count;
  return piece_bytes;
}

void NcclMessages::start_round() noexcept {
  collect_pieces();
  if (pieces_.empty()) return;
  Status const status =
      communicator_->run([this](ncclComm_t handle) { return enqueue_round(handle); });
  if (status.ok()) {
    round_under_way_ = true;
  } else {
    break_off(status);
  }
}

ncclResult_t NcclMessages::enqueue_round(ncclComm_t handle) noexcept {
  bool good = true;
  for (Piece const& piece : pieces_)
    if (piece.is_send)
      good =
          good && cudaMemcpyAsync(staging_.data() + slot_of(piece), mirror_.data() + slot_of(piece),
                                  piece.num_bytes, cudaMemcpyHostToDevice, stream_) == cudaSuccess;
  if (!good) return ncclUnhandledCudaError;
  if (ncclResult_t const result = enqueue_group(handle); !went_well(result)) return result;
  for (Piece const& piece : pieces_)
    if (!piece.is_send)
      good =
          good && cudaMemcpyAsync(mirror_.data() + slot_of(piece), staging_.data() + slot_of(piece),
                                  piece.num_bytes, cudaMemcpyDeviceToHost, stream_) == cudaSuccess;
  good = good && cudaEventRecord(round_end_, stream_) == cudaSuccess;
  return good ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t NcclMessages::enqueue_group(ncclComm_t handle) noexcept {
  NcclApi const& api = communicator_->api();
  ncclResult_t result = api.group_start();
  if (result != ncclSuccess) return result;
  for (Piece const& piece : pieces_) {
    if (!went_well(result)) break;
    std::byte* const slot = staging_.data() + slot_of(piece);
    result = piece.is_send
                 ? api.send(slot, piece.num_bytes, ncclUint8, piece.peer, handle, stream_)
                 : api.recv(slot, piece.num_bytes, ncclUint8, piece.peer, handle, stream_);
  }
  ncclResult_t const ended = api.group_end();
  return went_well(result) ? ended : result;
}

void NcclMessages::finish_round() noexcept {
  round_under_way_ = false;
  for (Piece const& piece : pieces_) {
    if (!piece.is_send) {
      take_in(piece.peer, {mirror_.data() + slot_of(piece), piece.num_bytes});
    } else if (piece.message != nullptr && piece.message->moved_bytes == piece.message->num_bytes) {
      finish(*piece.message, {});
    }
  }
  pieces_.clear();
}

void NcclMessages::take_in(int peer, ConstBytes piece) noexcept {
  Incoming& incoming = incoming_[static_cast<std::size_t>(peer)];
  ConstBytes const bytes = incoming.under_way ? piece : begin_incoming(peer, incoming, piece);
  if (!failure_.ok()) return;
  NcclMessage const* const receiver = incoming.receiver;
  if (incoming.kept && !bytes.empty()) {
    std::memcpy(incoming.bytes.data() + incoming.moved_bytes, bytes.data(), bytes.size());
  } else if (receiver != nullptr && incoming.num_bytes <= receiver->num_bytes && !bytes.empty()) {
    std::memcpy(receiver->target + incoming.moved_bytes, bytes.data(), bytes.size());
  }
  incoming.moved_bytes += bytes.size();
  if (incoming.moved_bytes == incoming.num_bytes) end_incoming(peer, incoming);
}

/// Looks for the receive that a frame answers: what of the message is in the frame.
ConstBytes NcclMessages::begin_incoming(int peer, Incoming& incoming, ConstBytes frame) noexcept {
  NcclFrameHeader header;
  std::memcpy(&header, frame.data(), sizeof header);
  if (header.magic != NcclFrameHeader::kMagic) {
    break_off({Code::mismatch, "what came from another rank is not a message of ours"});
    return {};
  }
  incoming = {};
  incoming.under_way = true;
  incoming.channel = static_cast<Channel>(header.channel);
  incoming.tag = header.tag;
  incoming.num_bytes = header.num_bytes;
  for (NcclMessage* message = first_; message != nullptr && incoming.receiver == nullptr;
       message = message->next)
    if (!message->is_send && !message->begun && message->peer == peer &&
        message->channel == incoming.channel && message->tag == incoming.tag)
      incoming.receiver = message;
  if (incoming.receiver != nullptr) {
    incoming.receiver->begun = true;
  } else {
    incoming.kept = true;
    try {
      incoming.bytes.resize(static_cast<std::size_t>(header.num_bytes));
    } catch (std::exception const&) {
      break_off({Code::out_of_memory, "no room for a message that nobody has asked for yet"});
    }
  }
  std::size_t const count =
      static_cast<std::size_t>(std::min<std::uint64_t>(header.num_bytes, kNcclFrameRoom));
  return frame.subspan(sizeof header, count);
}

void NcclMessages::end_incoming(int peer, Incoming& incoming) noexcept {
  incoming.under_way = false;
  if (incoming.kept) {
    keep(peer, incoming.channel, incoming.tag, incoming.bytes);
    incoming.bytes = {};
  } else if (incoming.receiver != nullptr) {
    NcclMessage& receiver = *incoming.receiver;
    incoming.receiver = nullptr;
    receiver.moved_bytes = incoming.num_bytes;
    bool const fits = incoming.num_bytes <= receiver.num_bytes;
    finish(receiver, fits ? Status{}
                          : Status{Code::capacity_exceeded,
                                   "a message is longer than the bytes that wait for it"});
  }
}

}  // namespace gradsieve
