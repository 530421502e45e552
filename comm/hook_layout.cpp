// SPDX-License-Identifier: Apache-2.0
// How a plan is cut: buckets into parcels, parcels into the letters of each round.
#include <algorithm>
#include <utility>

#include "comm/exchange/shards.hpp"
#include "comm/hook_impl.hpp"
#include "core/hash.hpp"

namespace gradsieve {
namespace {

constexpr std::size_t kMaxPieces = 65535;  // num_pieces is 16 bits on the wire

}  // namespace

// Bytes that a rank hands to the transport for one element of a dense f32 gradient, and for a
// chain, without the few constant bytes: what decides whether compression is worth it at all.
void Hook::Impl::decide_exchange(Parcel& parcel, Chain const& chain) {
  Compressor const& compressor = *chain.compressor;
  int const last = compressor.num_rounds() - 1;
  TensorInfo const& largest = std::ranges::max_element(parcel.lanes, {}, [](Lane const& lane) {
                                return lane.info.num_elements;
                              })->info;
  ExchangeKind const natural = compressor.round(last, largest).exchange;
  switch (chain.exchange) {
    case ExchangeChoice::automatic:
      parcel.exchange = natural;
      break;
    case ExchangeChoice::gather:
      parcel.exchange = ExchangeKind::gather;
      break;
    case ExchangeChoice::two_shot:
      parcel.exchange = ExchangeKind::shard_sum;
      break;
    case ExchangeChoice::all_reduce:
      parcel.exchange = ExchangeKind::sum;
      break;
  }
  if (parcel.dtype == DType::f64 && parcel.exchange == ExchangeKind::shard_sum) {
    refuse_plan("a two_shot adds in f32; f64 gradients take exchange=auto, gather or all_reduce");
  }
  if (chain.exchange != ExchangeChoice::automatic || natural != ExchangeKind::gather) return;

  double const others = transport->world_size() - 1;
  constexpr std::size_t kConstantBytes = 64;  // section headers and paddings of a sparse body
  double compressed = 0.0;
  double dense = 0.0;
  for (Lane const& lane : parcel.lanes) {
    std::size_t const capacity = compressor.settled_bytes(last, lane.info);
    compressed +=
        others * static_cast<double>(capacity > kConstantBytes ? capacity - kConstantBytes : 0);
    dense += 2.0 * others / transport->world_size() * static_cast<double>(lane.info.num_elements) *
             static_cast<double>(size_of(DType::f32));
  }
  if (compressed <= dense || others == 0.0) return;
  parcel.stand_aside = "gathering '" + chain.text + "' would send up to " +
                       std::to_string(compressed / dense) + " times the bytes of a dense sum";
  if (options.strict)
    throw Error(Code::unsupported,
                "plan: " + parcel.stand_aside + "; strict mode does not stand aside");
  parcel.chain = dense_chain;
  parcel.exchange = ExchangeKind::sum;
}

void Hook::Impl::lay_parcels() {
  // On a device a set of indices is filled up with some that are beyond the piece.
  std::uint64_t const most = device ? kMaxPieceElements / 2 : kMaxPieceElements;
  bucket_parcels.assign(buckets.size(), {});
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    // Tensors of one chain travel together; a tensor longer than a piece may be is cut first.
    std::vector<std::pair<std::shared_ptr<Chain const>, std::uint32_t>> open;
    for (std::uint32_t const t : bucket_tensors[b]) {
      PlannedTensor& tensor = tensors[t];
      std::shared_ptr<Chain const> const chain = chain_for(tensor.desc);
      auto found = std::ranges::find_if(open, [&](auto const& entry) {
        return entry.first->text == chain->text && parcels[entry.second].lanes.size() < kMaxPieces;
      });
      if (found == open.end()) {
        Parcel parcel;
        parcel.index = static_cast<std::uint32_t>(parcels.size());
        parcel.bucket = static_cast<std::uint32_t>(b);
        parcel.chain = chain;
        parcel.dtype = tensor.desc.dtype;
        open.emplace_back(chain, parcel.index);
        bucket_parcels[b].push_back(parcel.index);
        parcels.push_back(std::move(parcel));
        found = std::prev(open.end());
      }
      Parcel& parcel = parcels[found->second];
      tensor.parcel = parcel.index;
      tensor.parcel_offset = parcel.num_elements;
      bool const joins =
          chain->scope == Scope::bucket && !parcel.lanes.empty() &&
          parcel.lanes.back().bucket_offset + parcel.lanes.back().info.num_elements ==
              tensor.bucket_offset &&
          parcel.lanes.back().info.num_elements + tensor.desc.num_elements <= most;
      if (joins) {
        TensorInfo& info = parcel.lanes.back().info;
        info.id = PlanHash(info.id).add(tensor_id(tensor.desc.name)).value();
        info.num_elements += tensor.desc.num_elements;
        parcel.num_elements += tensor.desc.num_elements;
        continue;
      }
      std::uint64_t offset = 0;
      do {
        Lane lane;
        lane.info = {tensor_id(tensor.desc.name), offset,
                     std::min(tensor.desc.num_elements - offset, most), tensor.desc.num_rows,
                     tensor.desc.dtype};
        lane.bucket_offset = tensor.bucket_offset + offset;
        lane.parcel_offset = parcel.num_elements;
        offset += lane.info.num_elements;
        parcel.num_elements += lane.info.num_elements;
        parcel.lanes.push_back(std::move(lane));
      } while (offset < tensor.desc.num_elements);
    }
  }
  num_sequences = 0;
  for (Parcel& parcel : parcels) {
    decide_exchange(parcel, *parcel.chain);
    parcel.plan_hash = PlanHash(model_hash).add(parcel.index).value();
    lay_rounds(parcel);
  }
}

void Hook::Impl::lay_rounds(Parcel& parcel) {
  Compressor const& compressor = parcel.compressor();
  int const world_size = transport->world_size();
  for (int index = 0; index < compressor.num_rounds(); ++index) {
    Round round;
    RoundInfo const first = compressor.round(index, parcel.lanes[0].info);
    round.exchange = index == compressor.num_rounds() - 1 ? parcel.exchange : first.exchange;
    round.sum_dtype = first.sum_type == SumType::f64 ? DType::f64 : DType::f32;
    round.sequence = num_sequences;
    num_sequences += round.exchange == ExchangeKind::shard_sum ? 2 : 1;

    bool const sharded = round.exchange == ExchangeKind::shard_sum;
    round.letters.resize(sharded ? static_cast<std::size_t>(world_size) : 1);
    for (std::size_t q = 0; q < round.letters.size(); ++q) {
      exchange::ElementRange range{0, parcel.num_elements};
      if (sharded) {
        range = exchange::shard_range(parcel.num_elements, compressor.block_elements(), world_size,
                                      static_cast<int>(q));
      }
      // A border that would cut a block of a later lane moves down to that block's start.
      auto const snap = [&](std::uint64_t border, Lane const& lane) {
        std::uint64_t const inner =
            std::clamp(border, lane.parcel_offset, lane.parcel_offset + lane.info.num_elements) -
            lane.parcel_offset;
        return inner == lane.info.num_elements
                   ? inner
                   : inner / compressor.block_elements() * compressor.block_elements();
      };
      for (std::size_t l = 0; l < parcel.lanes.size(); ++l) {
        Lane const& lane = parcel.lanes[l];
        std::uint64_t const begin = snap(range.begin, lane);
        std::uint64_t const end = snap(range.end, lane);
        if (sharded && begin == end) continue;
        Piece piece;
        piece.info = lane.info;
        piece.info.offset_elements += begin;
        piece.info.num_elements = end - begin;
        piece.bucket_offset = lane.bucket_offset + begin;
        piece.parcel_offset = lane.parcel_offset + begin;
        piece.lane = static_cast<std::uint32_t>(l);
        round.letters[q].num_elements += piece.info.num_elements;
        round.letters[q].pieces.push_back(piece);
      }
      if (round.letters[q].pieces.empty()) {  // an owner of nothing still sends a header
        Piece piece;
        piece.info = parcel.lanes[0].info;
        piece.info.num_elements = 0;
        round.letters[q].pieces.push_back(piece);
      }
    }
    for (Letter& letter : round.letters) {
      std::vector<std::size_t> capacities;
      std::size_t sum_bytes = kNumLanes * size_of(round.sum_dtype);
      for (Piece& piece : letter.pieces) {
        piece.capacity_bytes = compressor.round(index, piece.info).capacity_bytes;
        capacities.push_back(piece.capacity_bytes);
        sum_bytes += piece.capacity_bytes;
      }
      std::size_t const capacity =
          round.exchange == ExchangeKind::sum ? sum_bytes : wire::payload_capacity(capacities);
      round.capacity_bytes = std::max(round.capacity_bytes, wire::aligned(capacity));
    }
    if (device) lay_fixed(round, index, parcel);
    if (sharded) round.owned = round.letters[static_cast<std::size_t>(transport->rank())];
    parcel.rounds.push_back(std::move(round));
  }
}

}  // namespace gradsieve
