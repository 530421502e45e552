// SPDX-License-Identifier: Apache-2.0
#include "comm/staged_exchange.hpp"

#include <cstring>

#include "core/device_stream.hpp"

namespace gradsieve {
namespace {

/// Keeps what comes from each rank at its place in `received`.
struct Collector {
  Bytes received;
  std::size_t part_bytes;

  Status operator()(int rank, ConstBytes payload) const noexcept {
    if (payload.size() != part_bytes)
      return {Code::mismatch, "a rank sent a payload of another capacity than planned"};
    if (!payload.empty()) {
      std::memcpy(received.data() + static_cast<std::size_t>(rank) * part_bytes, payload.data(),
                  part_bytes);
    }
    return {};
  }
};

}  // namespace

StagedExchange::StagedExchange(exchange::ExchangeContext& context, std::size_t most_bytes)
    : context_(&context),
      own_(most_bytes, pinned_memory()),
      received_(most_bytes, pinned_memory()),
      letters_(static_cast<std::size_t>(context.transport->world_size())) {}

/// The own bytes on the host. When it returns the stream has also passed the last copy out of
/// received_.
Status StagedExchange::fetch(Stream stream, ConstBytes own, std::size_t received_bytes) noexcept {
  if (own.size() > own_.num_bytes() || received_bytes > received_.num_bytes())
    return {Code::internal, "the pinned memory is smaller than planned"};
  GRADSIEVE_RETURN_IF_ERROR(copy_in_order(stream, own.data(), own_.data(), own.size()));
  return synchronize(stream);
}

Status StagedExchange::all_gather(Stream stream, ConstBytes own, Bytes received) noexcept {
  GRADSIEVE_RETURN_IF_ERROR(fetch(stream, own, received.size()));
  Collector const collect{received_.bytes(), own.size()};
  GRADSIEVE_RETURN_IF_ERROR(
      exchange::all_gather(*context_, own_.bytes().first(own.size()), own.size(), collect));
  return copy_in_order(stream, received_.data(), received.data(), received.size());
}

Status StagedExchange::all_to_all(Stream stream, ConstBytes own, Bytes received) noexcept {
  GRADSIEVE_RETURN_IF_ERROR(fetch(stream, own, received.size()));
  std::size_t const part_bytes = own.size() / letters_.size();
  for (std::size_t rank = 0; rank < letters_.size(); ++rank)
    letters_[rank] = own_.bytes().subspan(rank * part_bytes, part_bytes);
  Collector const collect{received_.bytes(), part_bytes};
  GRADSIEVE_RETURN_IF_ERROR(exchange::all_to_all(*context_, letters_, part_bytes, collect));
  return copy_in_order(stream, received_.data(), received.data(), received.size());
}

Status StagedExchange::all_reduce(Stream stream, ConstTensorView own, TensorView sum) noexcept {
  std::size_t const num_bytes = static_cast<std::size_t>(own.num_bytes());
  GRADSIEVE_RETURN_IF_ERROR(
      fetch(stream, {static_cast<std::byte const*>(own.data), num_bytes}, num_bytes));
  GRADSIEVE_RETURN_IF_ERROR(
      exchange::all_reduce(*context_, ConstTensorView(own_.data(), own.num_elements, own.dtype),
                           TensorView(received_.data(), own.num_elements, own.dtype)));
  return copy_in_order(stream, received_.data(), sum.data, num_bytes);
}

Status StagedExchange::all_reduce_min(Stream, std::uint64_t const*, std::uint64_t*) noexcept {
  return {Code::unsupported, "a staged exchange has no minimum: its hosts vote"};
}

}  // namespace gradsieve
