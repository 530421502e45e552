// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "gradsieve/wire.hpp"

#include "comm/exchange/shards.hpp"
#include "comm/exchange/swap.hpp"

namespace gradsieve::exchange {

namespace {

/// sum_i ← sum_i + x_i, at any alignment.
template <typename T>
void add(ConstBytes values, Bytes sum) noexcept {
  for (std::size_t i = 0; i < sum.size(); i += sizeof(T))
    wire::store<T>(sum.data() + i,
                   wire::load<T>(sum.data() + i) + wire::load<T>(values.data() + i));
}

class AllReduce {
 public:
  AllReduce(ExchangeContext& context, ConstTensorView own, TensorView result) noexcept
      : context_(context),
        own_(own),
        result_(result),
        rank_(context.transport->rank()),
        world_size_(context.transport->world_size()) {}

  Status run() noexcept {
    Status const status = sum_own_shard();
    int const blamed_rank = context_.blamed_rank;
    // Those who wait for this shard must neither wait in vain nor take half a sum for a whole one.
    if (!status.ok()) context_.deadline = std::max(context_.deadline, Clock::now()) + kGrace;
    Status const gathered = gather_shards(status.ok());
    if (status.ok()) return gathered;
    context_.blamed_rank = blamed_rank;
    return status;
  }

 private:
  [[nodiscard]] ElementRange shard(int rank) const noexcept {
    return shard_range(own_.num_elements, 1, world_size_, rank);
  }
  [[nodiscard]] ConstBytes own_bytes(int rank) const noexcept {
    ElementRange const range = shard(rank);
    ConstTensorView const part = own_.slice(range.begin, range.num_elements());
    return {static_cast<std::byte const*>(part.data), static_cast<std::size_t>(part.num_bytes())};
  }
  [[nodiscard]] Bytes result_bytes(int rank) const noexcept {
    ElementRange const range = shard(rank);
    TensorView const part = result_.slice(range.begin, range.num_elements());
    return {static_cast<std::byte*>(part.data), static_cast<std::size_t>(part.num_bytes())};
  }

  Status sum_own_shard() noexcept {
    Bytes const sum = result_bytes(rank_);
    std::size_t const capacity_bytes = own_bytes(0).size();
    bool first = true;
    return swap(
        context_, own_bytes(rank_), [&](int peer) { return own_bytes(peer); },
        [&](int, int slot) {
          return window_slot(context_.scratch, capacity_bytes, slot).first(sum.size());
        },
        [&](int, ConstBytes values) -> Status {
          if (values.size() != sum.size())
            return {Code::mismatch, "ranks disagree on the number of elements of a sum"};
          if (first && !sum.empty()) {
            std::memcpy(sum.data(), values.data(), sum.size());
          } else if (own_.dtype == DType::f32) {
            add<float>(values, sum);
          } else {
            add<double>(values, sum);
          }
          first = false;
          return {};
        });
  }

  Status gather_shards(bool own_is_whole) noexcept {
    ConstBytes const own = own_is_whole ? ConstBytes(result_bytes(rank_)) : ConstBytes();
    return swap(
        context_, own, [&](int) { return own; }, [&](int peer, int) { return result_bytes(peer); },
        [&](int rank, ConstBytes sum) -> Status {
          std::size_t const expected_bytes = result_bytes(rank).size();
          if (sum.size() == expected_bytes) return {};
          if (sum.empty()) return {Code::peer_failed, "a rank could not add up its shard"};
          return {Code::mismatch, "ranks disagree on the number of elements of a sum"};
        });
  }

  ExchangeContext& context_;
  ConstTensorView own_;
  TensorView result_;
  int rank_;
  int world_size_;
};

}  // namespace

std::size_t all_reduce_scratch_bytes(int world_size, std::uint64_t num_elements,
                                     DType dtype) noexcept {
  std::uint64_t const largest = max_shard_elements(num_elements, 1, world_size);
  return window_bytes(world_size, static_cast<std::size_t>(largest * size_of(dtype)));
}

Status all_reduce(ExchangeContext& context, ConstTensorView own, TensorView result) noexcept {
  if (context.transport == nullptr)
    return {Code::invalid_argument, "an exchange needs a transport"};
  if (own.dtype != DType::f32 && own.dtype != DType::f64)
    return {Code::invalid_argument, "an all_reduce adds f32 or f64"};
  if (own.dtype != result.dtype || own.num_elements != result.num_elements)
    return {Code::invalid_argument, "own and result of an all_reduce differ in type or length"};
  std::size_t const scratch_bytes =
      all_reduce_scratch_bytes(context.transport->world_size(), own.num_elements, own.dtype);
  if (context.scratch.size() < scratch_bytes)
    return {Code::invalid_argument, "the scratch of an all_reduce is too small"};
  // The grace that a failure adds to the deadline is for this call only.
  Deadline const deadline = context.deadline;
  Status const status = AllReduce(context, own, result).run();
  context.deadline = deadline;
  return status;
}

}  // namespace gradsieve::exchange
