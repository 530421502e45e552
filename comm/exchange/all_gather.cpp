// SPDX-License-Identifier: Apache-2.0
#include "comm/exchange/swap.hpp"

namespace gradsieve::exchange {

std::size_t all_gather_scratch_bytes(int world_size, std::size_t capacity_bytes) noexcept {
  return window_bytes(world_size, capacity_bytes);
}

Status all_gather(ExchangeContext& context, ConstBytes own, std::size_t capacity_bytes,
                  Received received) noexcept {
  if (context.transport == nullptr)
    return {Code::invalid_argument, "an exchange needs a transport"};
  if (context.scratch.size() <
      all_gather_scratch_bytes(context.transport->world_size(), capacity_bytes))
    return {Code::invalid_argument, "the scratch of an all_gather is too small"};
  // The others learn of bytes beyond the capacity by receiving them; so the exchange takes place.
  Status const status = swap(
      context, own, [&](int) { return own; },
      [&](int, int slot) { return window_slot(context.scratch, capacity_bytes, slot); }, received);
  if (status.ok() && own.size() > capacity_bytes)
    return {Code::capacity_exceeded, "own bytes are longer than the capacity"};
  return status;
}

}  // namespace gradsieve::exchange
