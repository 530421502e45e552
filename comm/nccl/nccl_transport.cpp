// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_transport.hpp"

#include <utility>

#include "comm/nccl/nccl_messages.hpp"
#include "comm/nccl/nccl_setup.hpp"

namespace gradsieve {

NcclTransport::NcclTransport(Transport& host,
                             std::unique_ptr<NcclCommunicator> communicator) noexcept
    : host_(host), communicator_(std::move(communicator)), exchange_(*communicator_) {}

NcclTransport::NcclTransport(std::unique_ptr<Transport> host,
                             std::unique_ptr<NcclCommunicator> communicator) noexcept
    : owned_host_(std::move(host)),
      host_(*owned_host_),
      communicator_(std::move(communicator)),
      exchange_(*communicator_) {}

TransportTraits NcclTransport::traits() const noexcept {
  TransportTraits traits = host_.traits();
  traits.name = "nccl";
  return traits;
}

Status NcclTransport::send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
                           Request& request) noexcept {
  GRADSIEVE_RETURN_IF_ERROR(host_.send(channel, peer, tag, bytes, request));
  bytes_sent_.fetch_add(bytes.size(), std::memory_order_relaxed);
  messages_sent_.fetch_add(1, std::memory_order_relaxed);
  return {};
}

Status NcclTransport::receive(Channel channel, int peer, std::uint32_t tag, Bytes bytes,
                              Request& request) noexcept {
  return host_.receive(channel, peer, tag, bytes, request);
}

Status NcclTransport::wait(Request& request, Deadline deadline) noexcept {
  return host_.wait(request, deadline);
}

void NcclTransport::abort() noexcept {
  host_.abort();
  communicator_->abort();
}

TransportCounters NcclTransport::counters() const noexcept {
  TransportCounters total = exchange_.counters();
  total.bytes_sent += bytes_sent_.load(std::memory_order_relaxed);
  total.messages_sent += messages_sent_.load(std::memory_order_relaxed);
  return total;
}

Status NcclTransport::dense_all_reduce(TensorView data) noexcept {
  if (data.device != Device::host)
    return {Code::unsupported, "device memory is summed by device_exchange(), on a stream"};
  return host_.dense_all_reduce(data);
}

std::unique_ptr<Transport> make_nccl_transport(Transport& host, NcclOptions options) {
  return std::make_unique<NcclTransport>(host, make_communicator(host, options));
}

std::unique_ptr<Transport> make_nccl_transport(NcclId const& id, int world_size, int rank,
                                               NcclOptions options) {
  auto communicator = make_communicator(id, world_size, rank, options);
  auto messages = std::make_unique<NcclMessages>(*communicator, options);
  return std::make_unique<NcclTransport>(std::move(messages), std::move(communicator));
}

std::unique_ptr<Transport> make_nccl_transport(void* nccl_comm, NcclOptions options) {
  if (nccl_comm == nullptr)
    throw Error(Code::invalid_argument, "make_nccl_transport: expected an ncclComm_t, got null");
  auto communicator = std::make_unique<NcclCommunicator>(
      nccl_api(), static_cast<ncclComm_t>(nccl_comm), NcclCommunicator::Ownership::borrowed,
      options.call_deadline);
  auto messages = std::make_unique<NcclMessages>(*communicator, options);
  return std::make_unique<NcclTransport>(std::move(messages), std::move(communicator));
}

}  // namespace gradsieve
