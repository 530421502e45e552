// SPDX-License-Identifier: Apache-2.0
#include "comm/exchange/swap.hpp"

#include <algorithm>

#include "gradsieve/wire.hpp"

namespace gradsieve::exchange {

namespace {

/// One swap: the sends are requests[q], the receives requests[P + r].
class Swap {
 public:
  Swap(ExchangeContext& context, Outgoing outgoing, Place place) noexcept
      : context_(context),
        transport_(*context.transport),
        outgoing_(outgoing),
        place_(place),
        rank_(transport_.rank()),
        world_size_(transport_.world_size()) {}

  Status run(ConstBytes own, Received received) noexcept {
    context_.blamed_rank = -1;
    for (Request& request : context_.requests) {
      request.done = true;
      request.status = {};
    }
    for (int i = 0; i < kGatherWindow; ++i) start_next_receive();
    start_sends();
    for (int peer = 0; peer < world_size_; ++peer) {
      if (peer == rank_) {
        hand_out(peer, own, received);
      } else if (gone(peer)) {
        fail(peer, {Code::timeout, "a rank is gone"});
      } else {
        finish_receive(peer, received);
        start_next_receive();
      }
    }
    finish_sends();
    return status_;
  }

 private:
  [[nodiscard]] bool gone(int peer) const noexcept {
    return !context_.gone.empty() && context_.gone[static_cast<std::size_t>(peer)];
  }
  [[nodiscard]] Request& send_request(int peer) const noexcept {
    return context_.requests[static_cast<std::size_t>(peer)];
  }
  [[nodiscard]] Request& receive_request(int peer) const noexcept {
    return context_
        .requests[static_cast<std::size_t>(world_size_) + static_cast<std::size_t>(peer)];
  }
  /// The first failure is the one reported.
  void fail(int peer, Status status) noexcept {
    if (status_.ok()) {
      status_ = status;
      context_.blamed_rank = peer;
    }
  }

  void start_next_receive() noexcept {
    while (next_peer_ < world_size_ && (next_peer_ == rank_ || gone(next_peer_))) ++next_peer_;
    if (next_peer_ == world_size_) return;
    int const slot = num_receives_++ % kGatherWindow;
    // An error stays in the request, where finish_receive() finds it.
    static_cast<void>(transport_.receive(context_.channel, next_peer_, context_.tag,
                                         place_(next_peer_, slot), receive_request(next_peer_)));
    ++next_peer_;
  }

  // Each rank begins with its neighbour, so that they do not all send to rank 0 first.
  void start_sends() noexcept {
    for (int distance = 1; distance < world_size_; ++distance) {
      int const peer = (rank_ + distance) % world_size_;
      if (gone(peer)) continue;
      static_cast<void>(transport_.send(context_.channel, peer, context_.tag, outgoing_(peer),
                                        send_request(peer)));
    }
  }

  void finish_receive(int peer, Received received) noexcept {
    Request& request = receive_request(peer);
    int const slot = num_finished_++ % kGatherWindow;
    if (wait(peer, request))
      hand_out(peer, place_(peer, slot).first(static_cast<std::size_t>(request.num_bytes)),
               received);
  }

  void finish_sends() noexcept {
    for (int distance = 1; distance < world_size_; ++distance) {
      int const peer = (rank_ + distance) % world_size_;
      static_cast<void>(wait(peer, send_request(peer)));
    }
  }

  [[nodiscard]] bool wait(int peer, Request& request) noexcept {
    Status const status =
        transport_.wait(request, late_ ? context_.deadline + kGrace : context_.deadline);
    if (status.ok()) return true;
    bool const lost = status.code() == Code::timeout || status.code() == Code::transport_error;
    bool const theirs = lost || status.code() == Code::capacity_exceeded;
    if (lost && !context_.gone.empty()) context_.gone[static_cast<std::size_t>(peer)] = true;
    late_ = late_ || lost;
    fail(theirs ? peer : -1, status);
    return false;
  }

  void hand_out(int peer, ConstBytes bytes, Received received) noexcept {
    if (refused_) return;
    Status const status = received(peer, bytes);
    refused_ = !status.ok();
    if (refused_) fail(peer, status);
  }

  ExchangeContext& context_;
  Transport& transport_;
  Outgoing outgoing_;
  Place place_;
  int rank_;
  int world_size_;
  int next_peer_ = 0;
  int num_receives_ = 0;
  int num_finished_ = 0;
  bool late_ = false;
  bool refused_ = false;  ///< `received` returned an error: it is not called again
  Status status_;
};

}  // namespace

Status swap(ExchangeContext& context, ConstBytes own, Outgoing outgoing, Place place,
            Received received) noexcept {
  if (context.transport == nullptr)
    return {Code::invalid_argument, "an exchange needs a transport"};
  std::size_t const ranks = static_cast<std::size_t>(context.transport->world_size());
  if (context.requests.size() < 2 * ranks)
    return {Code::invalid_argument, "an exchange needs two requests per rank"};
  if (!context.gone.empty() && context.gone.size() != ranks)
    return {Code::invalid_argument, "an exchange needs one `gone` per rank"};
  return Swap(context, outgoing, place).run(own, received);
}

std::size_t window_bytes(int world_size, std::size_t capacity_bytes) noexcept {
  int const slots = std::min(world_size - 1, kGatherWindow);
  return static_cast<std::size_t>(slots) * wire::aligned(capacity_bytes);
}

Bytes window_slot(Bytes scratch, std::size_t capacity_bytes, int slot) noexcept {
  return scratch.subspan(static_cast<std::size_t>(slot) * wire::aligned(capacity_bytes),
                         capacity_bytes);
}

}  // namespace gradsieve::exchange
