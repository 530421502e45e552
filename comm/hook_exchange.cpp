// SPDX-License-Identifier: Apache-2.0
// The exchanges of a round: which collective carries the letters, and what is done with what comes.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "comm/exchange/shards.hpp"
#include "comm/exchange/swap.hpp"
#include "comm/hook_impl.hpp"
#include "comm/stopwatch.hpp"

namespace gradsieve {

std::uint32_t Hook::Impl::tag(std::uint32_t sequence) const noexcept {
  // Late messages of a failed step must not match the next one's. With the vote's bit and the roll
  // calls above it all tags stay below 2^28: MPICH has no more.
  return static_cast<std::uint32_t>((first_tag + sequence) & 0x03ffffffu);
}

exchange::ExchangeContext& Hook::Impl::data_context(Parcel& parcel,
                                                    std::uint32_t sequence) noexcept {
  static_cast<void>(parcel);
  data.transport = transport;
  data.tag = tag(sequence);
  // A rank that has missed another one knows the step is lost. Others may have given it up
  // meanwhile and send it nothing: it goes on to the vote, before they miss it there as well.
  bool const is_lost = std::find(data.gone.begin(), data.gone.end(), true) != data.gone.end();
  auto const patience = is_lost ? exchange::kGrace : options.exchange_deadline;
  data.deadline = Clock::now() + patience;
  data.blamed_rank = -1;
  return data;
}

/// What this rank hands to the transport in a round, if all is as planned.
std::uint64_t Hook::Impl::bytes_as_encoded(Round const& round) const noexcept {
  auto const own = static_cast<std::size_t>(transport->rank());
  std::uint64_t const others = static_cast<std::uint64_t>(transport->world_size()) - 1;
  switch (round.exchange) {
    case ExchangeKind::gather:
      return others * round.letters[0].length;
    case ExchangeKind::sum: {
      std::uint64_t const width = size_of(round.sum_dtype);
      std::uint64_t const count = round.letters[0].length / width;
      std::uint64_t const shard =
          exchange::shard_range(count, 1, transport->world_size(), transport->rank())
              .num_elements();
      return (count - shard + others * shard) * width;
    }
    case ExchangeKind::shard_sum: {
      std::uint64_t total = others * round.owned.length;
      for (std::size_t q = 0; q < round.letters.size(); ++q)
        total += q == own ? 0 : round.letters[q].length;
      return total;
    }
  }
  return 0;
}

Status Hook::Impl::exchange_round(Parcel& parcel, int round) noexcept {
  TraceRange range(observer.get(), "exchange", parcel.bucket);
  Clock::time_point const start = Clock::now();
  auto const inner = [&] { return parcel.decode_spent.seconds + parcel.encode_spent.seconds; };
  double const inner_before = inner();
  std::uint64_t const bytes_before = transport->counters().bytes_sent;
  if (round == parcel.last_round() && parcel.status.ok()) clear_accumulators(parcel);

  Round const& r = parcel.rounds[static_cast<std::size_t>(round)];
  Status status = device                               ? exchange_on_device(parcel, round)
                  : r.exchange == ExchangeKind::gather ? exchange_gather(parcel, round)
                  : r.exchange == ExchangeKind::sum    ? exchange_sum(parcel, round)
                                                       : exchange_shards(parcel, round);

  std::uint64_t const num_bytes = transport->counters().bytes_sent - bytes_before;
  parcel.wire_bytes += num_bytes;
  range.set_bytes(num_bytes);
  double const elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  parcel.exchange_seconds += elapsed - (inner() - inner_before);
  if (options.strict && !device && status.ok() && num_bytes != bytes_as_encoded(r)) {
    status = {Code::transport_error,
              "strict mode: the transport was handed other bytes than were encoded for it"};
    blame(parcel, status, transport->rank(), "bytes");
  }
  if (!status.ok()) {
    step_failed = true;
    blame(parcel, status, data.blamed_rank, "exchange");
  }
  return status;
}

Status Hook::Impl::exchange_gather(Parcel& parcel, int round) noexcept {
  Round& r = parcel.rounds[static_cast<std::size_t>(round)];
  Letter const& letter = r.letters[0];
  bool const last = round == parcel.last_round();
  auto const received = [&](int sender, ConstBytes payload) -> Status {
    if (!parcel.status.ok()) return {};  // taking part only so that nobody waits for us
    if (last) return decode_letter(parcel, round, letter, false, sender, payload, weight(), false);
    // Kept until all are there: absorb() looks at the bodies of all ranks together.
    std::memcpy(r.agreed.data() + static_cast<std::size_t>(sender) * r.capacity_bytes,
                payload.data(), payload.size());
    PayloadHeader header;
    return open(parcel, round, false, sender, payload, letter, header);
  };
  exchange::ExchangeContext& context = data_context(parcel, r.sequence);
  return exchange::all_gather(context, letter.bytes(), r.capacity_bytes, received);
}

Status Hook::Impl::exchange_sum(Parcel& parcel, int round) noexcept {
  Round& r = parcel.rounds[static_cast<std::size_t>(round)];
  Letter const& letter = r.letters[0];
  std::size_t const width = size_of(r.sum_dtype);
  std::uint64_t const count = letter.length / width;
  exchange::ExchangeContext& context = data_context(parcel, r.sequence);
  GRADSIEVE_RETURN_IF_ERROR(
      exchange::all_reduce(context, ConstTensorView(letter.storage.data(), count, r.sum_dtype),
                           TensorView(r.sum.data(), count, r.sum_dtype)));

  auto const lane = [&](std::size_t i) -> double {
    std::byte const* const at = r.sum.data() + letter.length - (kNumLanes - i) * width;
    return r.sum_dtype == DType::f64 ? wire::load<double>(at)
                                     : static_cast<double>(wire::load<float>(at));
  };
  auto const only_rank = [&](StatusLane number, StatusLane ranks) {
    double const rank = lane(ranks);  // other ranks had a part in it: anything, NaN included
    bool const is_rank = rank >= 0.0 && rank < transport->world_size();
    return lane(number) == 1.0 && is_rank ? static_cast<int>(rank) : -1;
  };
  if (lane(kLaneFailed) != 0.0) {
    context.blamed_rank = only_rank(kLaneFailed, kLaneFailedRanks);
    return {Code::peer_failed, "a rank reports that it failed"};
  }
  if (lane(kLaneNonFinite) != 0.0) {
    parcel.found_nonfinite = true;
    parcel.nonfinite_rank = only_rank(kLaneNonFinite, kLaneNonFiniteRanks);
  }
  if (lane(kLaneHistory) != static_cast<double>(history & 0xfff) * transport->world_size()) {
    return {Code::mismatch, "ranks disagree on which steps were committed or refused"};
  }
  if (!parcel.status.ok() || round < parcel.last_round()) return {};

  Stopwatch const watch(parcel.decode_spent);
  std::size_t position = 0;
  for (Piece const& piece : letter.pieces) {
    std::size_t const num_bytes = parcel.compressor().sum_bytes(round, piece.info, step);
    ExecContext const ctx = this->context(parcel, decode_workspace, decode_threads);
    GRADSIEVE_RETURN_IF_ERROR(parcel.compressor().decode_add(
        ctx, round, piece.info, ConstBytes(r.sum).subspan(position, num_bytes), weight(),
        parcel.lanes[piece.lane].state(), accumulator(parcel, piece)));
    position += num_bytes;
  }
  return {};
}

// Two-shot: every rank sends each owner its shard; the owner adds in rank order, encodes the sum
// once more and sends that to all, itself included, so that all ranks decode the same bytes.
Status Hook::Impl::exchange_shards(Parcel& parcel, int round) noexcept {
  Round& r = parcel.rounds[static_cast<std::size_t>(round)];
  std::size_t const own = static_cast<std::size_t>(transport->rank());
  if (!r.sum.empty()) std::memset(r.sum.data(), 0, r.sum.size());  // a rank may own nothing
  for (std::size_t q = 0; q < r.letters.size(); ++q) letters_out[q] = r.letters[q].bytes();

  Status first = exchange::all_to_all(
      data_context(parcel, r.sequence), letters_out, r.capacity_bytes,
      [&](int sender, ConstBytes payload) -> Status {
        if (!parcel.status.ok()) return {};
        return decode_letter(parcel, round, r.letters[own], false, sender, payload, weight(), true);
      });
  if (parcel.found_nonfinite)
    parcel.words.flags |= kStepNonFinite;  // tells all ranks, by the header below
  if (first.ok() && parcel.status.ok()) first = encode_owned(parcel, round);
  if (!first.ok()) blame(parcel, first, data.blamed_rank, "exchange");
  Status const own_status = parcel.status.ok() ? first : parcel.status;
  if (!own_status.ok()) seal(parcel, round, r.owned, true, own_status, 0);

  Status const second = exchange::all_gather(
      data_context(parcel, r.sequence + 1), r.owned.bytes(), r.capacity_bytes,
      [&](int sender, ConstBytes payload) -> Status {
        if (!own_status.ok()) return {};
        return decode_letter(parcel, round, r.letters[static_cast<std::size_t>(sender)], true,
                             sender, payload, 1.0, false);
      });
  return first.ok() ? second : first;
}

Status Hook::Impl::absorb(Parcel& parcel, int round) noexcept {
  Round const& r = parcel.rounds[static_cast<std::size_t>(round)];
  Letter const& letter = r.letters[0];
  std::size_t const world_size = static_cast<std::size_t>(transport->world_size());
  for (std::size_t p = 0; p < letter.pieces.size(); ++p) {
    Piece const& piece = letter.pieces[p];
    for (std::size_t rank = 0; rank < world_size; ++rank) {
      ConstBytes const payload =
          ConstBytes(r.agreed).subspan(rank * r.capacity_bytes, r.capacity_bytes);
      PayloadHeader header;
      std::memcpy(&header, payload.data(), sizeof header);  // checked when it came in
      wire::PieceReader reader(
          payload.first(wire::kHeaderBytes + static_cast<std::size_t>(header.body_bytes)), header);
      for (std::size_t skip = 0; skip <= p; ++skip) {
        if (Status const status = reader.next(bodies_in[rank]); !status.ok()) {
          blame(parcel, status, static_cast<int>(rank), "body");
          return status;
        }
      }
    }
    ExecContext const ctx = context(parcel, decode_workspace, decode_threads);
    Status const status = parcel.compressor().absorb(ctx, round, piece.info, bodies_in,
                                                     parcel.lanes[piece.lane].state());
    if (!status.ok()) {
      blame(parcel, status, -1, "agreement");
      return status;
    }
  }
  return {};
}

}  // namespace gradsieve
