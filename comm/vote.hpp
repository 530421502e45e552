// SPDX-License-Identifier: Apache-2.0
// Agreement on small things: the handshake of plan() and the vote of finish().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gradsieve/hook.hpp"

#include "comm/exchange/collectives.hpp"

namespace gradsieve {

/// What became of a step.
enum class Outcome : std::uint8_t { none, committed, rolled_back, in_doubt };

struct VoteResult {
  Outcome outcome = Outcome::in_doubt;
  int missing_rank = -1;   ///< the first rank that was not heard: the roll call
  int refusing_rank = -1;  ///< the first rank that voted against
};

/// A 64-bit minimum over (ok ? step + 1 : 0). Committed when it equals step + 1 and all were heard.
/// A rank that votes against, or hears one that does, knows that nobody can commit.
[[nodiscard]] VoteResult vote(exchange::ExchangeContext& context, std::uint64_t step, bool ok,
                              std::span<std::uint64_t> words, std::span<bool> heard) noexcept;

/// One thing that must be equal on all ranks before anything is exchanged.
struct HandshakeField {
  char const* name;
  std::uint64_t hash;
  std::string own_value;  ///< for the message: "topk(density=0.01) | …"
};

[[nodiscard]] std::uint64_t tensor_hash(TensorDesc const& tensor) noexcept;

/// Compares all fields and the planned tensors, in order, on all ranks.
/// Throws Error(mismatch) naming the rank, the field and both values, on every rank; Error(timeout)
/// naming a rank that did not answer. Fills `failure` before throwing. `during`: the call, for the
/// sentences.
void handshake(exchange::ExchangeContext& context, std::span<HandshakeField const> fields,
               std::span<TensorDesc const> tensors, Failure& failure, char const* during = "plan");

}  // namespace gradsieve
