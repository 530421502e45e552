// SPDX-License-Identifier: Apache-2.0
// The exchanges of device memory, each one call of NCCL.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "gradsieve/device_exchange.hpp"

#include "comm/nccl/nccl_communicator.hpp"

namespace gradsieve {

/// No call asks the device anything, so that all of them may be captured.
class NcclExchange final : public DeviceExchange {
 public:
  /// The communicator stays the caller's and has to outlive this.
  explicit NcclExchange(NcclCommunicator& communicator) noexcept : communicator_(communicator) {}

  [[nodiscard]] bool is_asynchronous() const noexcept override { return true; }

  Status all_gather(Stream stream, ConstBytes own, Bytes received) noexcept override;
  Status all_to_all(Stream stream, ConstBytes own, Bytes received) noexcept override;
  Status all_reduce(Stream stream, ConstTensorView own, TensorView sum) noexcept override;
  Status all_reduce_min(Stream stream, std::uint64_t const* own,
                        std::uint64_t* least) noexcept override;
  Status check() noexcept override { return communicator_.check(); }

  /// What was handed to NCCL for other ranks, a captured call once: all_gather own · (P − 1),
  /// all_to_all the P − 1 other parts, the reductions elements · width. One message a call.
  [[nodiscard]] TransportCounters counters() const noexcept;

 private:
  [[nodiscard]] Status reduce(Stream stream, void const* own, void* result, std::size_t count,
                              ncclDataType_t type, ncclRedOp_t operation) noexcept;
  [[nodiscard]] Status counted(Status status, std::uint64_t num_bytes) noexcept;
  [[nodiscard]] std::size_t num_ranks() const noexcept {
    return static_cast<std::size_t>(communicator_.world_size());
  }

  NcclCommunicator& communicator_;
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> messages_sent_{0};
};

}  // namespace gradsieve
