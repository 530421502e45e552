// SPDX-License-Identifier: Apache-2.0
// Device payloads over a transport that knows host memory only: through pinned memory, by the
// exchanges of comm/exchange.
#pragma once

#include "gradsieve/device_exchange.hpp"
#include "gradsieve/memory.hpp"

#include "comm/exchange/collectives.hpp"

namespace gradsieve {

/// Waits for the stream and for the other ranks in each call, so a thread of its own should make
/// them. Tag, deadline and blame are those of the context, which the caller sets before each call.
class StagedExchange final : public DeviceExchange {
 public:
  /// Room for calls whose larger side has at most `most_bytes`.
  StagedExchange(exchange::ExchangeContext& context, std::size_t most_bytes);

  [[nodiscard]] bool is_asynchronous() const noexcept override { return false; }
  Status all_gather(Stream stream, ConstBytes own, Bytes received) noexcept override;
  Status all_to_all(Stream stream, ConstBytes own, Bytes received) noexcept override;
  Status all_reduce(Stream stream, ConstTensorView own, TensorView sum) noexcept override;
  /// Code::unsupported: hosts that wait anyway vote among themselves.
  Status all_reduce_min(Stream stream, std::uint64_t const* own,
                        std::uint64_t* least) noexcept override;
  Status check() noexcept override { return {}; }

 private:
  Status fetch(Stream stream, ConstBytes own, std::size_t received_bytes) noexcept;

  exchange::ExchangeContext* context_;
  Buffer own_;
  Buffer received_;
  std::vector<ConstBytes> letters_;
};

}  // namespace gradsieve
