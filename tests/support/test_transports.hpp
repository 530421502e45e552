// SPDX-License-Identifier: Apache-2.0
// Transports around another one: that count, that lose messages, that mix up bytes.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "gradsieve/transport.hpp"

namespace gradsieve::testing {

/// Passes everything on.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(Transport& inner) : inner_(inner) {}

  [[nodiscard]] int rank() const noexcept override { return inner_.rank(); }
  [[nodiscard]] int world_size() const noexcept override { return inner_.world_size(); }
  [[nodiscard]] TransportTraits traits() const noexcept override { return inner_.traits(); }
  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override {
    return inner_.send(channel, peer, tag, bytes, request);
  }
  Status receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                 Request& request) noexcept override {
    return inner_.receive(channel, peer, tag, bytes, request);
  }
  Status wait(Request& request, Deadline deadline) noexcept override {
    return inner_.wait(request, deadline);
  }
  void abort() noexcept override { inner_.abort(); }
  [[nodiscard]] TransportCounters counters() const noexcept override { return inner_.counters(); }

 protected:
  Transport& inner_;
};

/// Counts per channel what is handed to send(), and keeps the largest tag.
class CountingTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override {
    auto const index = static_cast<std::size_t>(channel);
    bytes_[index] += bytes.size();
    ++messages_[index];
    largest_tag_ = std::max(largest_tag_.load(), tag);  // sends of one rank come one at a time
    return inner_.send(channel, peer, tag, bytes, request);
  }
  [[nodiscard]] std::uint64_t bytes(Channel channel) const {
    return bytes_[static_cast<std::size_t>(channel)];
  }
  [[nodiscard]] std::uint64_t messages(Channel channel) const {
    return messages_[static_cast<std::size_t>(channel)];
  }
  [[nodiscard]] std::uint32_t largest_tag() const { return largest_tag_; }

 private:
  std::array<std::atomic<std::uint64_t>, 2> bytes_ = {};
  std::array<std::atomic<std::uint64_t>, 2> messages_ = {};
  std::atomic<std::uint32_t> largest_tag_{0};
};

/// Loses what this rank sends on a channel to the peers that `lost` names, while it is armed.
class LossyTransport final : public ForwardingTransport {
 public:
  LossyTransport(Transport& inner, Channel channel, std::function<bool(int peer)> lost)
      : ForwardingTransport(inner), channel_(channel), lost_(std::move(lost)) {}

  void arm(bool armed) { armed_ = armed; }

  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override {
    if (armed_ && channel == channel_ && lost_(peer)) {
      request.num_bytes = bytes.size();
      request.status = {};
      request.done = true;
      return {};
    }
    return inner_.send(channel, peer, tag, bytes, request);
  }
  Status wait(Request& request, Deadline deadline) noexcept override {
    return request.done ? request.status : inner_.wait(request, deadline);
  }

 private:
  Channel channel_;
  std::function<bool(int)> lost_;
  std::atomic<bool> armed_{false};
};

/// Keeps the control messages of this rank to rank 0 back while it holds, and sends them
/// afterwards.
class LateTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  ~LateTransport() override {
    for (Message& message : late_)
      static_cast<void>(inner_.wait(message.request, Clock::now() + std::chrono::milliseconds(1)));
  }

  void hold(bool holding) {
    if (holding_ && !holding) {
      for (Message& message : late_)
        static_cast<void>(
            inner_.send(Channel::control, 0, message.tag, message.bytes, message.request));
    }
    holding_ = holding;
  }

  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override {
    if (!holding_ || channel != Channel::control || peer != 0)
      return inner_.send(channel, peer, tag, bytes, request);
    late_.push_back({tag, {bytes.begin(), bytes.end()}, {}});
    request.num_bytes = bytes.size();
    request.status = {};
    request.done = true;
    return {};
  }
  Status wait(Request& request, Deadline deadline) noexcept override {
    return request.done ? request.status : inner_.wait(request, deadline);
  }

 private:
  struct Message {
    std::uint32_t tag;
    std::vector<std::byte> bytes;
    Request request;
  };
  std::deque<Message> late_;
  bool holding_ = false;
};

/// Changes received data behind the header: what a faulty gather would do.
class MutatedTransport final : public ForwardingTransport {
 public:
  using Mutation = std::function<void(Bytes received)>;
  MutatedTransport(Transport& inner, Mutation mutation)
      : ForwardingTransport(inner), mutation_(std::move(mutation)) {}

  void arm(bool armed) { armed_ = armed; }

  Status receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                 Request& request) noexcept override {
    if (channel == Channel::data) {
      for (auto& [known, target] : targets_) {
        if (known == nullptr || known == &request) {
          known = &request;
          target = bytes;
          break;
        }
      }
    }
    return inner_.receive(channel, peer, tag, bytes, request);
  }
  Status wait(Request& request, Deadline deadline) noexcept override {
    Status const status = inner_.wait(request, deadline);
    for (auto& [known, target] : targets_) {
      if (known != &request) continue;
      known = nullptr;
      if (armed_ && status.ok())
        mutation_(target.first(static_cast<std::size_t>(request.num_bytes)));
    }
    return status;
  }

 private:
  Mutation mutation_;
  std::atomic<bool> armed_{false};
  std::array<std::pair<Request*, Bytes>, 64> targets_ = {};
};

}  // namespace gradsieve::testing
