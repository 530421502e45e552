// SPDX-License-Identifier: Apache-2.0
#include "comm/exchange/reference.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/exchange/shards.hpp"

namespace gradsieve::exchange {

namespace {

using BodyBytes = std::vector<std::byte>;

/// A rank's encoding of one piece in one round.
Status encode(ReferenceStep const& step, int round, TensorInfo const& piece,
              ReferenceRank const& rank, BodyBytes& body) {
  body.assign(step.compressor->round(round, piece).capacity_bytes, std::byte{0});
  std::uint64_t num_bytes = 0;
  Status const status = step.compressor->encode_with_residual(
      *rank.ctx, round, piece, rank.gradient, rank.residual, rank.state, Body(body, &num_bytes));
  body.resize(static_cast<std::size_t>(num_bytes));
  return status;
}

Status encode_all(ReferenceStep const& step, int round, std::vector<BodyBytes>& bodies) {
  bodies.resize(step.ranks.size());
  for (std::size_t r = 0; r < bodies.size(); ++r)
    GRADSIEVE_RETURN_IF_ERROR(encode(step, round, step.piece, step.ranks[r], bodies[r]));
  return {};
}

template <typename T>
void add(BodyBytes const& values, BodyBytes& sum) {
  for (std::size_t i = 0; i + sizeof(T) <= sum.size(); i += sizeof(T))
    wire::store<T>(sum.data() + i,
                   wire::load<T>(sum.data() + i) + wire::load<T>(values.data() + i));
}

/// The bodies of a sum round, added in rank order.
Status add_bodies(std::vector<BodyBytes> const& bodies, SumType type, BodyBytes& sum) {
  if (type == SumType::none)
    return {Code::invalid_argument, "the bodies of this round cannot be added"};
  sum = bodies[0];
  for (std::size_t r = 1; r < bodies.size(); ++r) {
    if (bodies[r].size() != sum.size())
      return {Code::mismatch, "the bodies of a sum differ in length"};
    type == SumType::f64 ? add<double>(bodies[r], sum) : add<float>(bodies[r], sum);
  }
  return {};
}

/// All rounds but the last: every rank absorbs what all sent.
Status agree(ReferenceStep const& step) {
  for (int round = 0; round + 1 < step.compressor->num_rounds(); ++round) {
    RoundInfo const info = step.compressor->round(round, step.piece);
    std::vector<BodyBytes> bodies;
    GRADSIEVE_RETURN_IF_ERROR(encode_all(step, round, bodies));
    std::vector<ConstBytes> received(bodies.begin(), bodies.end());
    BodyBytes sum;
    if (info.exchange == ExchangeKind::sum) {
      GRADSIEVE_RETURN_IF_ERROR(add_bodies(bodies, info.sum_type, sum));
      received.assign(1, sum);
    }
    for (ReferenceRank const& rank : step.ranks)
      GRADSIEVE_RETURN_IF_ERROR(
          step.compressor->absorb(*rank.ctx, round, step.piece, received, rank.state));
  }
  return {};
}

void clear(TensorView tensor) {
  if (tensor.num_elements != 0)
    std::memset(tensor.data, 0, static_cast<std::size_t>(tensor.num_bytes()));
}

/// Hands out one array and remembers whether it was asked for.
class ReferenceSink final : public MassSink {
 public:
  explicit ReferenceSink(std::span<float> room) : room_(room) {}
  [[nodiscard]] std::span<float> undelivered(TensorInfo const&) noexcept override { return room_; }

 private:
  std::span<float> room_;
};

ResidualView slice(ResidualView residual, ElementRange range) {
  std::size_t const begin = static_cast<std::size_t>(range.begin);
  std::size_t const count = static_cast<std::size_t>(range.num_elements());
  if (!residual.in.empty()) residual.in = residual.in.subspan(begin, count);
  if (!residual.out.empty()) residual.out = residual.out.subspan(begin, count);
  return residual;
}

/// One shard of a two-shot, from all ranks' gradients to what every rank decodes.
Status reduce_shard(ReferenceStep const& step, ElementRange range, std::size_t owner,
                    TensorView result, std::span<float> undelivered) {
  Compressor const& compressor = *step.compressor;
  int const round = compressor.num_rounds() - 1;
  TensorInfo piece = step.piece;
  piece.offset_elements += range.begin;
  piece.num_elements = range.num_elements();
  ReferenceRank const& owning = step.ranks[owner];

  std::vector<float> sum(static_cast<std::size_t>(range.num_elements()), 0.0F);
  for (ReferenceRank rank : step.ranks) {
    rank.gradient = rank.gradient.slice(range.begin, range.num_elements());
    rank.residual = slice(rank.residual, range);
    BodyBytes body;
    GRADSIEVE_RETURN_IF_ERROR(encode(step, round, piece, rank, body));
    GRADSIEVE_RETURN_IF_ERROR(compressor.decode_add(*owning.ctx, round, piece, body, step.weight,
                                                    owning.state, std::span<float>(sum)));
  }
  BodyBytes body(compressor.round(round, piece).capacity_bytes);
  std::uint64_t num_bytes = 0;
  ReferenceSink sink(undelivered);
  GRADSIEVE_RETURN_IF_ERROR(compressor.encode_owned(*owning.ctx, round, piece, sum, owning.state,
                                                    Body(body, &num_bytes), sink));
  return compressor.decode_add(*owning.ctx, round, piece,
                               ConstBytes(body).first(static_cast<std::size_t>(num_bytes)), 1.0,
                               owning.state, result);
}

}  // namespace

Status reference_gather(ReferenceStep const& step, TensorView result) {
  GRADSIEVE_RETURN_IF_ERROR(agree(step));
  int const round = step.compressor->num_rounds() - 1;
  std::vector<BodyBytes> bodies;
  GRADSIEVE_RETURN_IF_ERROR(encode_all(step, round, bodies));
  clear(result);
  for (BodyBytes const& body : bodies) {
    GRADSIEVE_RETURN_IF_ERROR(step.compressor->decode_add(
        *step.ranks[0].ctx, round, step.piece, body, step.weight, step.ranks[0].state, result));
  }
  return {};
}

Status reference_two_shot(ReferenceStep const& step, TensorView result,
                          std::span<std::span<float> const> undelivered) {
  GRADSIEVE_RETURN_IF_ERROR(agree(step));
  clear(result);
  int const world_size = static_cast<int>(step.ranks.size());
  for (int owner = 0; owner < world_size; ++owner) {
    std::size_t const o = static_cast<std::size_t>(owner);
    ElementRange const range =
        shard_range(step.piece.num_elements, step.compressor->block_elements(), world_size, owner);
    std::vector<float> lost(static_cast<std::size_t>(range.num_elements()), 0.0F);
    GRADSIEVE_RETURN_IF_ERROR(
        reduce_shard(step, range, o, result.slice(range.begin, range.num_elements()), lost));
    if (undelivered.empty() || undelivered[o].empty()) continue;
    std::fill(undelivered[o].begin(), undelivered[o].end(), 0.0F);
    std::copy(lost.begin(), lost.end(),
              undelivered[o].begin() + static_cast<std::ptrdiff_t>(range.begin));
  }
  return {};
}

Status reference_all_reduce(ReferenceStep const& step, TensorView result) {
  GRADSIEVE_RETURN_IF_ERROR(agree(step));
  int const round = step.compressor->num_rounds() - 1;
  std::vector<BodyBytes> bodies;
  GRADSIEVE_RETURN_IF_ERROR(encode_all(step, round, bodies));
  BodyBytes sum;
  GRADSIEVE_RETURN_IF_ERROR(
      add_bodies(bodies, step.compressor->round(round, step.piece).sum_type, sum));
  clear(result);
  return step.compressor->decode_add(*step.ranks[0].ctx, round, step.piece, sum, step.weight,
                                     step.ranks[0].state, result);
}

}  // namespace gradsieve::exchange
