// SPDX-License-Identifier: Apache-2.0
// A transport of two halves: device memory over NCCL, host memory over another transport.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "gradsieve/nccl.hpp"

#include "comm/nccl/nccl_exchange.hpp"

namespace gradsieve {

class NcclTransport final : public Transport {
 public:
  NcclTransport(Transport& host, std::unique_ptr<NcclCommunicator> communicator) noexcept;
  /// With a host transport of its own.
  NcclTransport(std::unique_ptr<Transport> host,
                std::unique_ptr<NcclCommunicator> communicator) noexcept;

  [[nodiscard]] int rank() const noexcept override { return host_.rank(); }
  [[nodiscard]] int world_size() const noexcept override { return host_.world_size(); }
  [[nodiscard]] TransportTraits traits() const noexcept override;

  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override;
  Status receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                 Request& request) noexcept override;
  Status wait(Request& request, Deadline deadline) noexcept override;
  void abort() noexcept override;
  [[nodiscard]] TransportCounters counters() const noexcept override;
  Status dense_all_reduce(TensorView data) noexcept override;
  [[nodiscard]] DeviceExchange* device_exchange() noexcept override { return &exchange_; }

 private:
  std::unique_ptr<Transport> owned_host_;  ///< null if it is somebody else's
  Transport& host_;
  std::unique_ptr<NcclCommunicator> communicator_;
  NcclExchange exchange_;
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> messages_sent_{0};
};

}  // namespace gradsieve
