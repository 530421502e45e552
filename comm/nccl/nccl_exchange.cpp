// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_exchange.hpp"

namespace gradsieve {

namespace {

cudaStream_t stream_of(Stream stream) noexcept { return static_cast<cudaStream_t>(stream.handle); }

/// An all-to-all of equal parts.
struct Parts {
  std::byte const* own;
  std::byte* received;
  std::size_t part_bytes;
};

ncclResult_t start_swap(NcclApi const& api, Parts parts, std::size_t peer, ncclComm_t handle,
                        cudaStream_t stream) noexcept {
  std::size_t const offset = peer * parts.part_bytes;
  int const number = static_cast<int>(peer);
  ncclResult_t const sent =
      api.send(parts.own + offset, parts.part_bytes, ncclUint8, number, handle, stream);
  if (!went_well(sent)) return sent;
  return api.recv(parts.received + offset, parts.part_bytes, ncclUint8, number, handle, stream);
}

/// ncclAlltoAll for libraries before 2.28. The own part does not travel.
ncclResult_t swap_in_a_group(NcclApi const& api, Parts parts, NcclCommunicator const& communicator,
                             cudaStream_t stream) noexcept {
  std::size_t const own_rank = static_cast<std::size_t>(communicator.rank());
  std::size_t const num_ranks = static_cast<std::size_t>(communicator.world_size());
  std::size_t const own_offset = own_rank * parts.part_bytes;
  if (cudaMemcpyAsync(parts.received + own_offset, parts.own + own_offset, parts.part_bytes,
                      cudaMemcpyDeviceToDevice, stream) != cudaSuccess)
    return ncclUnhandledCudaError;
  ncclResult_t result = api.group_start();
  if (result != ncclSuccess) return result;
  // Each rank begins with its neighbour, so that they do not all send to rank 0 first.
  for (std::size_t distance = 1; distance < num_ranks && went_well(result); ++distance)
    result =
        start_swap(api, parts, (own_rank + distance) % num_ranks, communicator.handle(), stream);
  ncclResult_t const ended = api.group_end();
  return went_well(result) ? ended : result;
}

}  // namespace

Status NcclExchange::counted(Status status, std::uint64_t num_bytes) noexcept {
  if (!status.ok()) return status;
  bytes_sent_.fetch_add(num_bytes, std::memory_order_relaxed);
  messages_sent_.fetch_add(1, std::memory_order_relaxed);
  return status;
}

TransportCounters NcclExchange::counters() const noexcept {
  return {bytes_sent_.load(std::memory_order_relaxed),
          messages_sent_.load(std::memory_order_relaxed)};
}

Status NcclExchange::all_gather(Stream stream, ConstBytes own, Bytes received) noexcept {
  if (received.size() / num_ranks() != own.size() || received.size() % num_ranks() != 0)
    return {Code::invalid_argument, "all_gather: expected received to be world_size times own"};
  if (own.empty()) return check();
  Status const status = communicator_.run([&](ncclComm_t handle) {
    return communicator_.api().all_gather(own.data(), received.data(), own.size(), ncclUint8,
                                          handle, stream_of(stream));
  });
  return counted(status, own.size() * (num_ranks() - 1));
}

Status NcclExchange::all_to_all(Stream stream, ConstBytes own, Bytes received) noexcept {
  if (received.size() != own.size() || own.size() % num_ranks() != 0)
    return {Code::invalid_argument,
            "all_to_all: expected own and received of one length, in world_size equal parts"};
  if (own.empty()) return check();
  Parts const parts{own.data(), received.data(), own.size() / num_ranks()};
  NcclApi const& api = communicator_.api();
  Status const status = communicator_.run([&](ncclComm_t handle) {
    if (api.all_to_all == nullptr)
      return swap_in_a_group(api, parts, communicator_, stream_of(stream));
    return api.all_to_all(parts.own, parts.received, parts.part_bytes, ncclUint8, handle,
                          stream_of(stream));
  });
  return counted(status, own.size() - parts.part_bytes);
}

Status NcclExchange::all_reduce(Stream stream, ConstTensorView own, TensorView sum) noexcept {
  if (own.dtype != sum.dtype || own.num_elements != sum.num_elements)
    return {Code::invalid_argument, "all_reduce: expected own and sum of one type and length"};
  if (own.dtype != DType::f32 && own.dtype != DType::f64)
    return {Code::unsupported, "all_reduce on devices sums f32 and f64 only"};
  ncclDataType_t const type = own.dtype == DType::f32 ? ncclFloat32 : ncclFloat64;
  if (own.num_elements == 0) return check();
  Status const status =
      reduce(stream, own.data, sum.data, static_cast<std::size_t>(own.num_elements), type, ncclSum);
  return counted(status, own.num_bytes());
}

Status NcclExchange::all_reduce_min(Stream stream, std::uint64_t const* own,
                                    std::uint64_t* least) noexcept {
  return counted(reduce(stream, own, least, 1, ncclUint64, ncclMin), sizeof *own);
}

Status NcclExchange::reduce(Stream stream, void const* own, void* result, std::size_t count,
                            ncclDataType_t type, ncclRedOp_t operation) noexcept {
  return communicator_.run([&](ncclComm_t handle) {
    return communicator_.api().all_reduce(own, result, count, type, operation, handle,
                                          stream_of(stream));
  });
}

}  // namespace gradsieve
