// SPDX-License-Identifier: Apache-2.0
// The one pattern below all exchanges: every rank sends to every other and receives from it.
#pragma once

#include <chrono>

#include "comm/exchange/collectives.hpp"

namespace gradsieve::exchange {

/// What goes to rank `peer`; stays as it is until swap() returns.
using Outgoing = FunctionRef<ConstBytes(int peer)>;
/// Room for what comes from rank `peer`. At most kGatherWindow receives are under way at a time;
/// `slot` < kGatherWindow is free again once the bytes of an earlier peer were handed out.
using Place = FunctionRef<Bytes(int peer, int slot)>;

/// After a first rank was late, the others have this long beyond the deadline to finish what they
/// have begun: they are not to be blamed for one that is gone.
inline constexpr std::chrono::milliseconds kGrace{200};

/// Sends outgoing(q) to each rank q and hands each rank's bytes to `received` in rank order, the
/// own ones (`own`) in their turn. Whatever fails, every send and receive has ended when it
/// returns.
Status swap(ExchangeContext& context, ConstBytes own, Outgoing outgoing, Place place,
            Received received) noexcept;

/// Bytes of min(P − 1, kGatherWindow) slots, each a multiple of 16 bytes.
[[nodiscard]] std::size_t window_bytes(int world_size, std::size_t capacity_bytes) noexcept;
/// The slot'th of them.
[[nodiscard]] Bytes window_slot(Bytes scratch, std::size_t capacity_bytes, int slot) noexcept;

}  // namespace gradsieve::exchange
