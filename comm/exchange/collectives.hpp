// SPDX-License-Identifier: Apache-2.0
// The collectives that payloads travel by, on nothing but Transport's send, receive and wait.
// They allocate nothing and return by the deadline (or a little after: cancelling takes a moment).
#pragma once

#include <cstdint>
#include <span>

#include "gradsieve/transport.hpp"

#include "core/function_ref.hpp"

namespace gradsieve::exchange {

/// What one exchange works with; made at plan time, the last four fields are set for each call.
struct ExchangeContext {
  Transport* transport = nullptr;
  std::span<Request> requests;  ///< at least 2·world_size
  Bytes scratch;                ///< receive area, see the *_scratch_bytes functions
  std::span<bool>
      gone;  ///< [world_size] ranks that missed a deadline: neither sent to nor waited for
  std::uint32_t tag = 0;
  Channel channel = Channel::data;
  Deadline deadline;
  int blamed_rank = -1;  ///< set on failure: the first rank that did not answer
};

/// Called for each rank's bytes in rank order 0 … P−1, the own ones included. A returned error ends
/// the calls, but the exchange still completes on the wire so that no peer waits in vain.
using Received = FunctionRef<Status(int rank, ConstBytes bytes)>;

/// Own bytes to all ranks. `capacity_bytes` bounds every rank's bytes. A rank that is gone or
/// misses the deadline is Code::timeout with its number in blamed_rank; the others are still
/// received.
///
/// Cost: P − 1 messages; (P − 1)·own bytes sent. Receives are posted for a window of ranks, so the
/// scratch does not grow with P beyond kGatherWindow payloads.
inline constexpr int kGatherWindow = 16;
[[nodiscard]] std::size_t all_gather_scratch_bytes(int world_size,
                                                   std::size_t capacity_bytes) noexcept;
Status all_gather(ExchangeContext& context, ConstBytes own, std::size_t capacity_bytes,
                  Received received) noexcept;

/// own[q] to rank q. The first hop of a two-shot; the second is an all_gather.
[[nodiscard]] std::size_t all_to_all_scratch_bytes(int world_size,
                                                   std::size_t capacity_bytes) noexcept;
Status all_to_all(ExchangeContext& context, std::span<ConstBytes const> own,
                  std::size_t capacity_bytes, Received received) noexcept;

/// result ← Σ_r own_r, added in rank order (f32 or f64), the same bits on all ranks; own stays as
/// it is. Shards are summed by their owner and gathered: 2·(P−1)/P·n elements sent, 2·(P−1)
/// messages.
[[nodiscard]] std::size_t all_reduce_scratch_bytes(int world_size, std::uint64_t num_elements,
                                                   DType dtype) noexcept;
Status all_reduce(ExchangeContext& context, ConstTensorView own, TensorView result) noexcept;

/// One 64-bit word per rank to all ranks: handshakes, votes, roll calls. words[r] and heard[r] for
/// every rank; Code::timeout if some rank was not heard.
Status all_gather_word(ExchangeContext& context, std::uint64_t own, std::span<std::uint64_t> words,
                       std::span<bool> heard) noexcept;

}  // namespace gradsieve::exchange
