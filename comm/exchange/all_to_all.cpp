// SPDX-License-Identifier: Apache-2.0
#include "comm/exchange/swap.hpp"

namespace gradsieve::exchange {

std::size_t all_to_all_scratch_bytes(int world_size, std::size_t capacity_bytes) noexcept {
  return window_bytes(world_size, capacity_bytes);
}

Status all_to_all(ExchangeContext& context, std::span<ConstBytes const> own,
                  std::size_t capacity_bytes, Received received) noexcept {
  if (context.transport == nullptr)
    return {Code::invalid_argument, "an exchange needs a transport"};
  Transport const& transport = *context.transport;
  if (own.size() != static_cast<std::size_t>(transport.world_size()))
    return {Code::invalid_argument, "an all_to_all needs bytes for every rank"};
  if (context.scratch.size() < all_to_all_scratch_bytes(transport.world_size(), capacity_bytes))
    return {Code::invalid_argument, "the scratch of an all_to_all is too small"};
  return swap(
      context, own[static_cast<std::size_t>(transport.rank())],
      [&](int peer) { return own[static_cast<std::size_t>(peer)]; },
      [&](int, int slot) { return window_slot(context.scratch, capacity_bytes, slot); }, received);
}

}  // namespace gradsieve::exchange
