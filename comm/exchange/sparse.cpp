// SPDX-License-Identifier: Apache-2.0
// Exchanges of given indices: agree on the numbers, send the pairs, merge what came.
#include <algorithm>
#include <limits>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>

#include "gradsieve/exchange.hpp"

#include "comm/exchange/sparse_agreement.hpp"
#include "comm/exchange/sparse_message.hpp"

namespace gradsieve {

namespace {

using exchange::ExchangeContext;
using exchange::Pairs;
using exchange::SparseAgreement;

/// One call on one rank: the own message, and room for exactly what the others announced.
class SparseExchange {
 public:
  SparseExchange(Transport& transport, SparseInput const& input,
                 SparseExchangeOptions const& options)
      : transport_(transport),
        input_(input),
        options_(options),
        ranks_(static_cast<std::size_t>(transport.world_size())),
        own_rank_(static_cast<std::size_t>(transport.rank())),
        agreement_(transport, input.num_elements, options),
        pairs_(ranks_) {}

  /// `dense_allowed`: a sum may take all elements where that is cheaper; then dense() is true
  /// after.
  Status agree(bool dense_allowed) {
    Status const own =
        exchange::write_pairs(input_, transport_.rank(), options_.tag, message_, own_pairs_);
    return agreement_.run(own_pairs_, own, [&]() -> Status {
      dense_ = dense_allowed && dense_is_cheaper();
      if (dense_) return {};
      try {
        received_.resize(static_cast<std::size_t>(received_bytes()));
      } catch (std::bad_alloc const&) {
        return {Code::out_of_memory, "no memory for the pairs of the other ranks"};
      } catch (std::length_error const&) {
        return {Code::out_of_memory, "no memory for the pairs of the other ranks"};
      }
      return {};
    });
  }

  [[nodiscard]] bool dense() const noexcept { return dense_; }
  [[nodiscard]] std::vector<Pairs> const& pairs() const noexcept { return pairs_; }

  /// Sends the own pairs to all and receives theirs; ranks without pairs neither send nor are
  /// waited for.
  Status move_pairs() {
    Deadline const deadline = agreement_.deadline();
    std::vector<Request>& requests = agreement_.requests();
    std::vector<Bytes> places(ranks_);
    Bytes rest = received_;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      if (!comes_from(rank)) continue;
      std::size_t const num_bytes = static_cast<std::size_t>(message_bytes(rank));
      places[rank] = rest.first(num_bytes);
      rest = rest.subspan(num_bytes);
      static_cast<void>(transport_.receive(Channel::data, static_cast<int>(rank), options_.tag,
                                           places[rank], requests[ranks_ + rank]));
    }
    for (std::size_t rank = 0; rank < ranks_; ++rank)
      if (goes_to(rank))
        static_cast<void>(transport_.send(Channel::data, static_cast<int>(rank), options_.tag,
                                          message_, requests[rank]));

    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      Status status;
      ConstBytes bytes = message_;
      if (comes_from(rank)) {
        Request& request = requests[ranks_ + rank];
        status = transport_.wait(request, deadline);
        if (status.ok()) bytes = places[rank].first(static_cast<std::size_t>(request.num_bytes));
      }
      if (status.ok() && agreement_.num_pairs()[rank] > 0)
        status =
            exchange::read_pairs(bytes, static_cast<int>(rank), options_.tag, input_.num_elements,
                                 agreement_.num_pairs()[rank], pairs_[rank]);
      note(status, rank);
    }
    for (std::size_t rank = 0; rank < ranks_; ++rank)
      if (goes_to(rank)) note(transport_.wait(requests[rank], deadline), rank);
    return agreement_.status();
  }

  Status sum_dense(float weight, SparseResult& result) {
    std::size_t const count = static_cast<std::size_t>(input_.num_elements);
    std::vector<float> own(count, 0.0F);
    Pairs const mine(message_, input_.num_elements, own_pairs_);
    for (std::uint64_t i = 0; i < own_pairs_; ++i)
      own[static_cast<std::size_t>(mine.index(i))] = weight * mine.value(i);
    result.values.resize(count);
    std::vector<std::byte> scratch(exchange::all_reduce_scratch_bytes(
        transport_.world_size(), input_.num_elements, DType::f32));
    ExchangeContext context;
    context.transport = &transport_;
    context.requests = agreement_.requests();
    context.scratch = scratch;
    context.tag = options_.tag;
    context.deadline = agreement_.deadline();
    Status const status =
        exchange::all_reduce(context, std::span<float const>(own), std::span<float>(result.values));
    note(status, static_cast<std::size_t>(std::max(context.blamed_rank, 0)));
    if (!status.ok()) return status;
    // The sparse sum starts from +0, so that no element of it is −0. Adding +0 gives the same here.
    for (float& value : result.values) value += 0.0F;
    result.indices.resize(count);
    std::iota(result.indices.begin(), result.indices.end(), std::uint64_t{0});
    result.dense = true;
    return {};
  }

 private:
  [[nodiscard]] bool comes_from(std::size_t rank) const noexcept {
    return rank != own_rank_ && agreement_.num_pairs()[rank] > 0;
  }
  [[nodiscard]] bool goes_to(std::size_t rank) const noexcept {
    return rank != own_rank_ && own_pairs_ > 0;
  }
  [[nodiscard]] std::uint64_t message_bytes(std::size_t rank) const noexcept {
    return exchange::pairs_message_bytes(input_.num_elements, agreement_.num_pairs()[rank]);
  }
  [[nodiscard]] std::uint64_t received_bytes() const noexcept {
    std::uint64_t sum = 0;
    for (std::size_t rank = 0; rank < ranks_; ++rank)
      if (comes_from(rank)) sum += message_bytes(rank);
    return sum;
  }
  /// Σ pairs · pair_bytes > P · 4 · num_elements, from numbers that all ranks have.
  [[nodiscard]] bool dense_is_cheaper() const noexcept {
    std::uint64_t sum = 0;
    for (std::uint64_t const count : agreement_.num_pairs()) sum += count;
    double const sparse_bytes =
        static_cast<double>(sum) * static_cast<double>(exchange::pair_bytes(input_.num_elements));
    return sparse_bytes >
           4.0 * static_cast<double>(ranks_) * static_cast<double>(input_.num_elements);
  }
  void note(Status status, std::size_t rank) {
    agreement_.note(status,
                    "sparse exchange: rank " + std::to_string(rank) + ": " + status.message());
  }

  Transport& transport_;
  SparseInput const& input_;
  SparseExchangeOptions const& options_;
  std::size_t ranks_;
  std::size_t own_rank_;
  SparseAgreement agreement_;
  std::vector<std::byte> message_;
  std::vector<std::byte> received_;
  std::uint64_t own_pairs_ = 0;
  bool dense_ = false;
  std::vector<Pairs> pairs_;
};

/// Calls visit(index, Σ value·weight) for each index that some rank has, in ascending order; values
/// are added to +0 in rank order.
template <typename Visit>
void merge(std::vector<Pairs> const& pairs, float weight, Visit const& visit) {
  std::vector<std::uint64_t> cursors(pairs.size(), 0);
  constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  for (;;) {
    std::uint64_t index = kNone;
    for (std::size_t rank = 0; rank < pairs.size(); ++rank)
      if (cursors[rank] < pairs[rank].num_pairs())
        index = std::min(index, pairs[rank].index(cursors[rank]));
    if (index == kNone) return;
    float sum = 0.0F;
    for (std::size_t rank = 0; rank < pairs.size(); ++rank) {
      if (cursors[rank] == pairs[rank].num_pairs() || pairs[rank].index(cursors[rank]) != index)
        continue;
      sum += weight * pairs[rank].value(cursors[rank]);
      ++cursors[rank];
    }
    visit(index, sum);
  }
}

}  // namespace

std::uint64_t flat_num_elements(std::span<std::uint64_t const> sizes) {
  constexpr std::uint64_t kMax =
      static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (std::find(sizes.begin(), sizes.end(), std::uint64_t{0}) != sizes.end()) return 0;
  std::uint64_t product = 1;
  for (std::uint64_t const size : sizes) {
    if (size > kMax / product) {
      throw Error(
          Code::invalid_argument,
          "a tensor has at most 9223372036854775807 elements; the product of its sizes is more");
    }
    product *= size;
  }
  return product;
}

Status sparse_all_gather(Transport& transport, SparseInput const& input,
                         std::vector<SparseResult>& per_rank,
                         SparseExchangeOptions const& options) {
  per_rank.clear();
  SparseExchange exchange(transport, input, options);
  GRADSIEVE_RETURN_IF_ERROR(exchange.agree(false));
  GRADSIEVE_RETURN_IF_ERROR(exchange.move_pairs());
  per_rank.resize(exchange.pairs().size());
  for (std::size_t rank = 0; rank < per_rank.size(); ++rank) {
    Pairs const& pairs = exchange.pairs()[rank];
    per_rank[rank].indices.resize(static_cast<std::size_t>(pairs.num_pairs()));
    per_rank[rank].values.resize(static_cast<std::size_t>(pairs.num_pairs()));
    for (std::size_t i = 0; i < per_rank[rank].indices.size(); ++i) {
      per_rank[rank].indices[i] = pairs.index(i);
      per_rank[rank].values[i] = pairs.value(i);
    }
  }
  return {};
}

Status sparse_all_reduce(Transport& transport, SparseInput const& input, float weight,
                         SparseResult& result, SparseExchangeOptions const& options) {
  result = {};
  SparseExchange exchange(transport, input, options);
  GRADSIEVE_RETURN_IF_ERROR(exchange.agree(true));
  if (exchange.dense()) return exchange.sum_dense(weight, result);
  GRADSIEVE_RETURN_IF_ERROR(exchange.move_pairs());
  // Counted first, so that the vectors never grow beyond what they end with.
  std::size_t num_unique = 0;
  merge(exchange.pairs(), weight, [&](std::uint64_t, float) { ++num_unique; });
  result.indices.reserve(num_unique);
  result.values.reserve(num_unique);
  merge(exchange.pairs(), weight, [&](std::uint64_t index, float value) {
    result.indices.push_back(index);
    result.values.push_back(value);
  });
  return {};
}

}  // namespace gradsieve
