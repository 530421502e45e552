// SPDX-License-Identifier: Apache-2.0
// A transport whose other rank says what a script tells it to: everything that this rank believes
// of a peer, without a second thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "gradsieve/transport.hpp"
#include "gradsieve/wire.hpp"

#include "tests/fuzz/fuzz_target.hpp"

namespace gradsieve::testing {

/// What a data message comes back as, by the next byte of the script.
enum class Reply : std::uint8_t {
  as_sent,      ///< by rank 1; also when the script has ended
  other_body,   ///< length (2), bytes
  other_byte,   ///< offset (2), byte (1)
  other_bytes,  ///< no header of ours either: length (2), bytes
  never,
  too_long,
};

/// Rank 0 of two. Votes and handshakes come back as they were sent.
class ScriptedPeer final : public Transport {
 public:
  [[nodiscard]] int rank() const noexcept override { return 0; }
  [[nodiscard]] int world_size() const noexcept override { return 2; }
  [[nodiscard]] TransportTraits traits() const noexcept override {
    return {.name = "scripted", .any_thread = false};
  }
  [[nodiscard]] TransportCounters counters() const noexcept override { return {}; }
  void abort() noexcept override {}

  void play(ConstBytes script) { script_ = InputReader(script); }

  Status send(Channel channel, int, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override {
    sent_[{channel, tag}].assign(bytes.begin(), bytes.end());
    request.done = true;
    request.num_bytes = bytes.size();
    return request.status = {};
  }
  Status receive(Channel channel, int, std::uint32_t tag, Bytes bytes,
                 Request& request) noexcept override {
    waiting_[&request] = {{channel, tag}, bytes};
    request.done = false;
    return {};
  }
  Status wait(Request& request, Deadline) noexcept override {
    if (request.done) return request.status;
    auto const& [key, room] = waiting_[&request];
    request.done = true;
    std::vector<std::byte>& message = sent_[key];
    bool const comes = key.first == Channel::control || change(message);
    request.num_bytes = message.size();
    if (!comes) {
      request.status = {Code::timeout, "the script says that nothing comes"};
    } else if (message.size() > room.size()) {
      request.status = {Code::capacity_exceeded, "a message is longer than the bytes for it"};
    } else {
      std::ranges::copy(message, room.begin());
      request.status = {};
    }
    return request.status;
  }

 private:
  /// False if the message does not come.
  bool change(std::vector<std::byte>& message) {
    auto const how = static_cast<Reply>(script_.number(1) % 8);
    if (how != Reply::other_bytes) sign_as_peer(message, message.size());
    if (how == Reply::other_body && message.size() >= wire::kHeaderBytes) {
      ConstBytes const body = script_.take(static_cast<std::size_t>(script_.number(2)));
      message.resize(wire::kHeaderBytes);
      message.insert(message.end(), body.begin(), body.end());
      sign_as_peer(message, message.size());
    } else if (how == Reply::other_byte && !message.empty()) {
      std::size_t const at = static_cast<std::size_t>(script_.number(2)) % message.size();
      message[at] = static_cast<std::byte>(script_.number(1));
    } else if (how == Reply::other_bytes) {
      ConstBytes const bytes = script_.take(static_cast<std::size_t>(script_.number(2)));
      message.assign(bytes.begin(), bytes.end());
    } else if (how == Reply::too_long) {
      message.resize(message.size() + (std::size_t{1} << 20));
    }
    return how != Reply::never;
  }
  static void sign_as_peer(std::vector<std::byte>& message, std::size_t num_bytes) {
    PayloadHeader header;
    if (num_bytes < sizeof header) return;
    std::memcpy(&header, message.data(), sizeof header);
    if (header.magic != PayloadHeader::kMagic) return;  // an array of a sum round has no header
    header.rank = 1;
    header.body_bytes = num_bytes - sizeof header;
    wire::write_header(header, message);
  }

  using Key = std::pair<Channel, std::uint32_t>;
  InputReader script_{{}};
  std::map<Key, std::vector<std::byte>> sent_;
  std::map<Request*, std::pair<Key, Bytes>> waiting_;
};

}  // namespace gradsieve::testing
