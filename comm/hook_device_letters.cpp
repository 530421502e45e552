// SPDX-License-Identifier: Apache-2.0
// Payloads of a hook on a device: laid out by capacity, so that no host has to know a length, and
// exchanged, checked and decoded in stream order. What hook_encode.cpp, hook_exchange.cpp and
// hook_decode.cpp are for host memory.
#include <algorithm>

#include "comm/hook_impl.hpp"
#include "comm/stopwatch.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {

/// The places of all bodies of a round.
void Hook::Impl::lay_fixed(Round& round, int index, Parcel& parcel) {
  bool const is_sum = round.exchange == ExchangeKind::sum;
  round.capacity_bytes = 0;
  for (Letter& letter : round.letters) {
    std::size_t const table = letter.pieces.size() > 1 ? letter.pieces.size() * 8 : 0;
    std::size_t end = is_sum ? 0 : wire::kHeaderBytes + table;
    for (Piece& piece : letter.pieces) {
      piece.capacity_bytes =
          piece.info.num_elements == 0 ? 0 : parcel.compressor().fixed_bytes(index, piece.info);
      piece.body_offset = is_sum ? end : wire::aligned(end);
      piece.word = static_cast<std::uint32_t>(on_device.piece_values.size());
      on_device.piece_values.push_back(0);
      end = piece.body_offset + piece.capacity_bytes;
    }
    letter.fixed_bytes = is_sum ? end : end - wire::kHeaderBytes;
    std::size_t const lanes = is_sum ? kNumLanes * sizeof(float) : 0;
    round.capacity_bytes = std::max(round.capacity_bytes, wire::aligned(end + lanes));
  }
}

Status Hook::Impl::encode_fixed_letter(Parcel& parcel, int round, Letter& letter) noexcept {
  if (letter.batch != nullptr) GRADSIEVE_RETURN_IF_ERROR(encode_batch(parcel, round, letter));
  for (Piece& piece : letter.pieces) {
    if (piece.is_batched) continue;
    std::uint64_t written = 0;
    Body const body(letter.storage.subspan(piece.body_offset, piece.capacity_bytes), &written);
    GRADSIEVE_RETURN_IF_ERROR(encode_piece(parcel, round, piece, body));
    if (written != piece.capacity_bytes)
      return {Code::internal, "a body on a device has another length than planned"};
  }
  GRADSIEVE_RETURN_IF_ERROR(round == 0 ? device->callers_error : device->progress_error);
  seal_fixed(parcel, round, letter, false, {});
  return {};
}

Status Hook::Impl::encode_batch(Parcel& parcel, int round, Letter& letter) noexcept {
  Piece everything;
  everything.info.num_elements = parcel.num_elements;
  ExecContext ctx = encode_context(parcel, round);
  ctx.piece_word = on_device.piece_words.as<std::uint64_t>().data();
  Status const status =
      letter.batch->encode(ctx, parcel.gradient, residual_view(parcel, everything), letter.storage);
  for (Piece& piece : letter.pieces) {
    if (!piece.is_batched) continue;
    piece.reached = status.ok() ? Reached::encoded : Reached::compensated;
    piece.body = letter.storage.subspan(piece.body_offset, piece.capacity_bytes);
    piece.body_bytes = status.ok() ? piece.capacity_bytes : 0;
  }
  return status;
}

void Hook::Impl::seal_fixed(Parcel& parcel, int round, Letter& letter, bool owned,
                            Status status) noexcept {
  ExecContext const ctx =
      owned ? context(parcel, decode_workspace, decode_threads) : encode_context(parcel, round);
  Round const& r = parcel.rounds[static_cast<std::size_t>(round)];
  std::uint32_t const reached = round == parcel.last_round() ? 2 : 1;
  bool const failed = !status.ok();
  if (r.exchange == ExchangeKind::sum) {
    std::size_t const num_bytes = static_cast<std::size_t>(letter.fixed_bytes);
    if (failed) kernels::clear(ctx, letter.storage.first(num_bytes));
    kernels::write_lanes(ctx, failed, device->step(), device_parcel(parcel), reached,
                         reinterpret_cast<float*>(letter.storage.data() + num_bytes));
    letter.length = num_bytes + kNumLanes * sizeof(float);
    return;
  }
  PayloadHeader header = header_of(parcel, round, letter, owned);
  header.status = static_cast<std::uint32_t>(status.code());
  kernels::seal_letter(ctx, header, failed ? 0 : letter.fixed_bytes, device->step(),
                       device_parcel(parcel), reached, letter.storage.data());
  letter.length = r.capacity_bytes;
}

Status Hook::Impl::encode_fixed_owned(Parcel& parcel, int round, MassSink& sink) noexcept {
  Round& r = parcel.rounds[static_cast<std::size_t>(round)];
  std::span<float const> sum{reinterpret_cast<float const*>(r.sum.data()),
                             r.sum.size() / sizeof(float)};
  if (r.owned.batch != nullptr) {
    ExecContext ctx = context(parcel, decode_workspace, decode_threads);
    ctx.owned = true;
    GRADSIEVE_RETURN_IF_ERROR(r.owned.batch->encode(
        ctx, sum, {.in = {}, .out = parcel.undelivered, .carry = 1.0F}, r.owned.storage));
  } else {
    GRADSIEVE_RETURN_IF_ERROR(encode_owned_pieces(parcel, round, sum, sink));
  }
  parcel.undelivered_written = true;
  GRADSIEVE_RETURN_IF_ERROR(device->progress_error);
  seal_fixed(parcel, round, r.owned, true, {});
  return {};
}

Status Hook::Impl::encode_owned_pieces(Parcel& parcel, int round, std::span<float const> sum,
                                       MassSink& sink) noexcept {
  Letter const& owned = parcel.rounds[static_cast<std::size_t>(round)].owned;
  for (Piece const& piece : owned.pieces) {
    std::size_t const count = static_cast<std::size_t>(piece.info.num_elements);
    ExecContext ctx = context(parcel, decode_workspace, decode_threads);
    ctx.owned = true;
    ctx.piece_word = on_device.piece_words.as<std::uint64_t>().data() + piece.word;
    std::uint64_t written = 0;
    Body const body(owned.storage.subspan(piece.body_offset, piece.capacity_bytes), &written);
    GRADSIEVE_RETURN_IF_ERROR(parcel.compressor().encode_owned(
        ctx, round, piece.info, sum.first(count), parcel.lanes[piece.lane].state(), body, sink));
    sum = sum.subspan(count);
  }
  return {};
}

// --- exchanges -----------------------------------------------------------------------------------

Status Hook::Impl::exchange_on_device(Parcel& parcel, int round) noexcept {
  switch (parcel.rounds[static_cast<std::size_t>(round)].exchange) {
    case ExchangeKind::gather:
      return gather_on_device(parcel, round);
    case ExchangeKind::sum:
      return sum_on_device(parcel, round);
    case ExchangeKind::shard_sum:
      break;
  }
  return shards_on_device(parcel, round);
}

Status Hook::Impl::gather_on_device(Parcel& parcel, int round) noexcept {
  Round& r = parcel.rounds[static_cast<std::size_t>(round)];
  std::size_t const world_size = static_cast<std::size_t>(transport->world_size());
  Bytes const received = on_device.received.bytes().first(world_size * r.capacity_bytes);
  static_cast<void>(data_context(parcel, r.sequence));
  GRADSIEVE_RETURN_IF_ERROR(
      on_device.exchange->all_gather(stream(), r.letters[0].storage, received));
  for (std::size_t sender = 0; sender < world_size && parcel.status.ok(); ++sender) {
    GRADSIEVE_RETURN_IF_ERROR(decode_fixed_letter(
        parcel, round, r.letters[0], false, static_cast<int>(sender),
        received.subspan(sender * r.capacity_bytes, r.capacity_bytes), weight(), false));
  }
  return {};
}

Status Hook::Impl::sum_on_device(Parcel& parcel, int round) noexcept {
  Round& r = parcel.rounds[static_cast<std::size_t>(round)];
  Letter const& letter = r.letters[0];
  std::uint64_t const count = letter.length / sizeof(float);
  static_cast<void>(data_context(parcel, r.sequence));
  GRADSIEVE_RETURN_IF_ERROR(on_device.exchange->all_reduce(
      stream(), ConstTensorView(letter.storage.data(), count, DType::f32, Device::cuda),
      TensorView(r.sum.data(), count, DType::f32, Device::cuda)));
  Stopwatch const watch(parcel.decode_spent);
  kernels::read_lanes(
      context(parcel, decode_workspace, decode_threads),
      letter_check(parcel, round, false, transport->rank(), letter),
      reinterpret_cast<float const*>(r.sum.data() + static_cast<std::size_t>(letter.fixed_bytes)));
  if (!parcel.status.ok()) return {};
  if (letter.batch != nullptr)
    GRADSIEVE_RETURN_IF_ERROR(decode_batch(parcel, *letter.batch, r.sum, weight(), {}, true));
  for (Piece const& piece : letter.pieces) {
    if (piece.is_batched) continue;
    ExecContext ctx = context(parcel, decode_workspace, decode_threads);
    ctx.piece_word = on_device.piece_words.as<std::uint64_t>().data() + piece.word;
    GRADSIEVE_RETURN_IF_ERROR(parcel.compressor().decode_add(
        ctx, round, piece.info, ConstBytes(r.sum).subspan(piece.body_offset, piece.capacity_bytes),
        weight(), parcel.lanes[piece.lane].state(), accumulator(parcel, piece)));
  }
  return device->progress_error;
}

Status Hook::Impl::shards_on_device(Parcel& parcel, int round) noexcept {
  Round& r = parcel.rounds[static_cast<std::size_t>(round)];
  std::size_t const world_size = r.letters.size();
  std::size_t const own = static_cast<std::size_t>(transport->rank());
  Bytes const received = on_device.received.bytes().first(world_size * r.capacity_bytes);
  ConstBytes const letters{r.letters[0].storage.data(), received.size()};
  if (r.owned.batch == nullptr)
    kernels::clear(context(parcel, decode_workspace, decode_threads), r.sum);

  static_cast<void>(data_context(parcel, r.sequence));
  Status first = on_device.exchange->all_to_all(stream(), letters, received);
  for (std::size_t sender = 0; sender < world_size && first.ok() && parcel.status.ok(); ++sender) {
    first = decode_fixed_letter(parcel, round, r.letters[own], false, static_cast<int>(sender),
                                received.subspan(sender * r.capacity_bytes, r.capacity_bytes),
                                weight(), true);
  }
  if (first.ok() && parcel.status.ok()) first = encode_owned(parcel, round);
  if (!first.ok()) blame(parcel, first, data.blamed_rank, "exchange");
  Status const own_status = parcel.status.ok() ? first : parcel.status;
  if (!own_status.ok()) seal_fixed(parcel, round, r.owned, true, own_status);

  static_cast<void>(data_context(parcel, r.sequence + 1));
  Status second = on_device.exchange->all_gather(stream(), r.owned.storage, received);
  for (std::size_t sender = 0; sender < world_size && second.ok() && own_status.ok(); ++sender) {
    second = decode_fixed_letter(parcel, round, r.letters[sender], true, static_cast<int>(sender),
                                 received.subspan(sender * r.capacity_bytes, r.capacity_bytes), 1.0,
                                 false);
  }
  return first.ok() ? second : first;
}

// --- decoding ------------------------------------------------------------------------------------

kernels::LetterCheck Hook::Impl::letter_check(Parcel& parcel, int round, bool owned, int sender,
                                              Letter const& letter) noexcept {
  Round const& r = parcel.rounds[static_cast<std::size_t>(round)];
  kernels::LetterCheck check;
  check.expected = header_of(parcel, round, letter, owned);
  check.expected.rank = static_cast<std::uint32_t>(sender);
  check.expected.body_bytes = letter.fixed_bytes;
  check.parcel_index = parcel.index;
  check.nonfinite_is_error = options.on_nonfinite == OnNonFinite::error;
  check.tells_others = r.exchange == ExchangeKind::shard_sum && !owned;
  check.step = device->step();
  check.parcel = device_parcel(parcel);
  check.bucket_nonfinite = on_device.bucket_nonfinite.as<std::uint32_t>().data() + parcel.bucket;
  return check;
}

/// To the shard, if there is one, else to the bucket or what stands for it.
Status Hook::Impl::decode_batch(Parcel& parcel, Batch const& batch, ConstBytes bodies,
                                double factor, std::span<float> shard, bool is_first) noexcept {
  bool const is_wide = shard.empty() && !parcel.widened.empty();
  std::span<float> const target = !shard.empty() ? shard
                                  : is_wide      ? parcel.widened
                                                 : parcel.gradient.as<float>();
  ExecContext ctx = context(parcel, decode_workspace, decode_threads);
  ctx.piece_word = on_device.piece_words.as<std::uint64_t>().data();
  GRADSIEVE_RETURN_IF_ERROR(
      batch.decode_add(ctx, bodies, factor, target,
                       is_wide ? Batch::Sums::as_residual : Batch::Sums::as_gradient, is_first));
  return device->progress_error;
}

// Also a payload that is not to be believed is decoded: it leads nowhere out of bounds, and no vote
// will let the step count.
Status Hook::Impl::decode_fixed_letter(Parcel& parcel, int round, Letter const& letter, bool owned,
                                       int sender, ConstBytes payload, double factor,
                                       bool into_shard) noexcept {
  Stopwatch const watch(parcel.decode_spent);
  TraceRange range(observer.get(), "decode", parcel.bucket);
  range.set_bytes(payload.size());
  kernels::open_letter(context(parcel, decode_workspace, decode_threads),
                       letter_check(parcel, round, owned, sender, letter), payload.data());
  Round const& r = parcel.rounds[static_cast<std::size_t>(round)];
  std::span<float> shard{reinterpret_cast<float*>(r.sum.data()), r.sum.size() / sizeof(float)};
  Batch const* const batch = (into_shard ? r.owned : letter).batch.get();
  if (batch != nullptr) {
    // Nobody has cleared: what comes first, or alone, begins the sum.
    bool const is_first = owned || sender == 0;
    GRADSIEVE_RETURN_IF_ERROR(decode_batch(parcel, *batch, payload, factor,
                                           into_shard ? shard : std::span<float>{}, is_first));
    if (into_shard) return {};
  }
  for (Piece const& piece : letter.pieces) {
    if (piece.is_batched) continue;
    std::size_t const count = static_cast<std::size_t>(piece.info.num_elements);
    TensorView const target =
        into_shard ? TensorView(shard.first(count)) : accumulator(parcel, piece);
    if (into_shard) shard = shard.subspan(count);
    ExecContext ctx = context(parcel, decode_workspace, decode_threads);
    ctx.piece_word = on_device.piece_words.as<std::uint64_t>().data() + piece.word;
    GRADSIEVE_RETURN_IF_ERROR(parcel.compressor().decode_add(
        ctx, round, piece.info, payload.subspan(piece.body_offset, piece.capacity_bytes), factor,
        parcel.lanes[piece.lane].state(), target));
  }
  return device->progress_error;
}

}  // namespace gradsieve
