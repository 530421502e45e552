// SPDX-License-Identifier: Apache-2.0
// Encoding of letters: the helpers of the straight line in hook.cpp. Decoding: hook_decode.cpp.
#include "comm/hook_impl.hpp"
#include "comm/stopwatch.hpp"
#include "core/philox.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {
namespace {

/// The log of a shard_sum's owner: pieces come in order, each takes the next place.
class ShardSink final : public MassSink {
 public:
  explicit ShardSink(std::span<float> log) noexcept : log_(log) {}
  std::span<float> undelivered(TensorInfo const& piece) noexcept override {
    std::span<float> const place =
        log_.subspan(position_, static_cast<std::size_t>(piece.num_elements));
    position_ += place.size();
    return place;
  }

 private:
  std::span<float> log_;
  std::size_t position_ = 0;
};

}  // namespace

ExecContext Hook::Impl::context(Parcel& parcel, Workspace& workspace,
                                ThreadPool& threads) noexcept {
  workspace.reset();
  ExecContext result;
  result.backend = options.backend;
  result.workspace = &workspace;
  result.threads = &threads;
  if (device) {
    result.stream = stream();
    result.words = &device_parcel(parcel)->words;
    bool const is_callers = &workspace == &encode_workspace;
    result.device_error = is_callers ? &device->callers_error : &device->progress_error;
  } else {
    result.words = &parcel.words;
  }
  result.seed = options.seed;
  result.rank = transport->rank();
  result.world_size = transport->world_size();
  return result;
}

// The first round is encoded by the caller, beside the progress thread, which encodes the others.
ExecContext Hook::Impl::encode_context(Parcel& parcel, int round) noexcept {
  return round == 0 ? context(parcel, encode_workspace, encode_threads)
                    : context(parcel, decode_workspace, decode_threads);
}

double Hook::Impl::weight() const noexcept {
  double const divisor = options.op == ReduceOp::mean ? transport->world_size() : 1;
  return options.predivide / divisor;
}

ResidualView Hook::Impl::residual_view(Parcel& parcel, Piece const& piece) const noexcept {
  if (parcel.dtype == DType::f64) return {};
  std::size_t const offset = static_cast<std::size_t>(piece.parcel_offset);
  std::size_t const count = static_cast<std::size_t>(piece.info.num_elements);
  auto const carry = device ? StepValue<float>::in_word(&device_parcel(parcel)->carry)
                            : StepValue<float>(static_cast<float>(
                                  parcel.chain->feedback.decay *
                                  (static_cast<double>(loss_scale) / parcel.residual_scale)));
  if (!parcel.with_residual) return {{}, parcel.scratch.subspan(offset, count), carry};
  if (parcel.residual_dtype != DType::f32) {
    std::span<float> const both = parcel.scratch.subspan(offset, count);
    return {both, both, carry};
  }
  std::span<float> const in = parcel.current.as<float>().subspan(offset, count);
  if (options.rollback == Rollback::merge) return {in, in, carry};
  return {in, parcel.next.as<float>().subspan(offset, count), carry};
}

TensorView Hook::Impl::accumulator(Parcel& parcel, Piece const& piece) const noexcept {
  if (!parcel.widened.empty()) {
    return TensorView(parcel.widened.subspan(static_cast<std::size_t>(piece.parcel_offset),
                                             static_cast<std::size_t>(piece.info.num_elements)));
  }
  return parcel.gradient.slice(piece.bucket_offset, piece.info.num_elements);
}

void Hook::Impl::clear_accumulators(Parcel& parcel) noexcept {
  auto const clear = [&](Piece const& stretch) {
    TensorView const view = accumulator(parcel, stretch);
    kernels::clear(
        context(parcel, decode_workspace, decode_threads),
        {static_cast<std::byte*>(view.data), static_cast<std::size_t>(view.num_bytes())});
  };
  if (!device) return for_each_stretch(parcel.lanes, clear);
  for (Letter const& letter : parcel.rounds.back().letters) {
    for_each_stretch(letter.pieces, clear, [&](Piece const& piece) {
      return !piece.is_batched || letter.batch->needs_zeros();
    });
  }
}

void Hook::Impl::blame(Parcel const& parcel, Status status, int rank, char const* field) noexcept {
  try {
    std::lock_guard const lock(failure_mutex);
    if (last_failure.code != Code::ok)
      return;  // the first failure is the cause, others follow from it
    last_failure = {status.code(), rank, "", field, status.message()};
    for (PlannedTensor const& tensor : tensors) {
      if (tensor.parcel == parcel.index) {
        last_failure.tensor = tensor.desc.name;
        break;
      }
    }
  } catch (...) {
    // Out of memory for a name: the status itself still reaches the caller.
  }
}

Status Hook::Impl::encode(Parcel& parcel, int round) noexcept {
  Stopwatch const watch(parcel.encode_spent);
  TraceRange range(observer.get(), "encode", parcel.bucket);
  bool const failed =
      step_failed || !parcel.status.ok();  // read once: the progress thread may set it
  if (round == 0) prepare(parcel, failed);
  Round& r = parcel.rounds[static_cast<std::size_t>(round)];
  for (Letter& letter : r.letters) {
    for (Piece& piece : letter.pieces) piece.reached = Reached::idle;
    Status const status = failed ? Status{Code::aborted, "the step has failed already"}
                          : r.exchange == ExchangeKind::sum ? encode_sum(parcel, round, letter)
                                                            : encode_letter(parcel, round, letter);
    if (!status.ok() && parcel.status.ok()) {
      parcel.status = status;
      if (!failed) blame(parcel, status, transport->rank(), "encode");
    }
  }
  if (!parcel.status.ok()) {
    step_failed = true;
    if (!failed) take_back(parcel, round);
    for (Letter& letter : r.letters) seal(parcel, round, letter, false, parcel.status, 0);
    return parcel.status;
  }
  parcel.reached = round == parcel.last_round() ? Reached::encoded : Reached::compensated;
  std::uint64_t num_bytes = 0;
  for (Letter const& letter : r.letters) num_bytes += letter.length;
  range.set_bytes(num_bytes);
  store_residual(parcel, round);
  return {};
}

// What no letter carries has not been taken: under merge every piece of the residual is c again.
void Hook::Impl::take_back(Parcel& parcel, int round) noexcept {
  if (!parcel.with_residual || options.rollback == Rollback::exact) return;
  for (Letter const& letter : parcel.rounds[static_cast<std::size_t>(round)].letters) {
    for (Piece const& piece : letter.pieces) {
      ExecContext const ctx = encode_context(parcel, round);
      ResidualView const residual = residual_view(parcel, piece);
      if (piece.reached == Reached::encoded) {
        static_cast<void>(parcel.compressor().decode_add(ctx, round, piece.info, piece.body, 1.0,
                                                         parcel.lanes[piece.lane].state(),
                                                         TensorView(residual.out)));
      } else if (piece.reached == Reached::idle && round == 0) {
        static_cast<void>(kernels::compensate(
            ctx, parcel.gradient.slice(piece.bucket_offset, piece.info.num_elements), residual));
      }
    }
  }
  parcel.reached = Reached::compensated;
  store_residual(parcel, round);
}

// What happens before the first round: the step's divisor, a residual of another type widened, and,
// in a step that has failed already, the gradient put aside (merge) or left alone (exact).
void Hook::Impl::prepare(Parcel& parcel, bool failed) noexcept {
  ExecContext const ctx = context(parcel, encode_workspace, encode_threads);
  if (parcel.with_residual && parcel.residual_dtype == DType::bf16) {
    kernels::widen(ctx, TensorView(parcel.current.as<BFloat16>().first(parcel.scratch.size())),
                   parcel.scratch);
  }
  if (options.predivide != 1.0) {
    float const factor = static_cast<float>(1.0 / options.predivide);
    for_each_stretch(parcel.lanes, [&](Piece const& stretch) {
      TensorView const slice =
          parcel.gradient.slice(stretch.bucket_offset, stretch.info.num_elements);
      if (slice.dtype == DType::f32) {
        kernels::scale(ctx, factor, slice.as<float>());
      } else if (slice.dtype == DType::f64) {
        for (double& x : slice.as<double>()) x /= options.predivide;
      } else {
        std::span<float> const wide =
            parcel.widened.subspan(static_cast<std::size_t>(stretch.parcel_offset),
                                   static_cast<std::size_t>(stretch.info.num_elements));
        kernels::widen(ctx, slice, wide);
        kernels::scale(ctx, factor, wide);
        kernels::narrow(ctx, wide, false, slice);
      }
    });
  }
  if (failed && options.rollback == Rollback::merge && parcel.with_residual) {
    for (Lane const& lane : parcel.lanes) {
      Piece const piece = whole(lane);
      static_cast<void>(kernels::compensate(
          ctx, parcel.gradient.slice(lane.bucket_offset, lane.info.num_elements),
          residual_view(parcel, piece)));
    }
    parcel.reached = Reached::compensated;
    store_residual(parcel, 0);
  }
}

void Hook::Impl::store_residual(Parcel& parcel, int round) noexcept {
  if (!parcel.with_residual || parcel.residual_dtype != DType::bf16) return;
  ExecContext const ctx = encode_context(parcel, round);
  Buffer& target = options.rollback == Rollback::merge ? parcel.current : parcel.next;
  for (Lane const& lane : parcel.lanes) {
    std::size_t const offset = static_cast<std::size_t>(lane.parcel_offset);
    std::size_t const count = static_cast<std::size_t>(lane.info.num_elements);
    RoundingKey const key{philox_key(options.seed, lane.info.id, Purpose::residual,
                                     static_cast<std::uint32_t>(transport->rank())),
                          step, lane.info.offset_elements};
    kernels::store_bf16(ctx, parcel.scratch.subspan(offset, count), key,
                        target.as<BFloat16>().subspan(offset, count));
  }
}

Status Hook::Impl::encode_piece(Parcel& parcel, int round, Piece& piece, Body body) noexcept {
  StepWords const before = parcel.words;
  ExecContext ctx = encode_context(parcel, round);
  if (device) ctx.piece_word = on_device.piece_words.as<std::uint64_t>().data() + piece.word;
  Status const status = parcel.compressor().encode_with_residual(
      ctx, round, piece.info, parcel.gradient.slice(piece.bucket_offset, piece.info.num_elements),
      residual_view(parcel, piece), parcel.lanes[piece.lane].state(), body);
  bool const sent = status.ok() && round == parcel.last_round();
  piece.reached = sent ? Reached::encoded : Reached::compensated;
  piece.body = body.written();
  piece.body_bytes = status.ok() ? body.num_bytes() : 0;
  piece.kept_elements = parcel.words.kept_elements - before.kept_elements;
  piece.overflowed_elements = parcel.words.overflowed_elements - before.overflowed_elements;
  return status;
}

Status Hook::Impl::encode_letter(Parcel& parcel, int round, Letter& letter) noexcept {
  if (device) return encode_fixed_letter(parcel, round, letter);
  wire::PieceWriter writer(letter.storage, letter.pieces.size());
  for (Piece& piece : letter.pieces) {
    GRADSIEVE_RETURN_IF_ERROR(
        encode_piece(parcel, round, piece, writer.next(piece.capacity_bytes)));
    writer.close();
  }
  seal(parcel, round, letter, false, {}, writer.body_bytes());
  return {};
}

Status Hook::Impl::encode_sum(Parcel& parcel, int round, Letter& letter) noexcept {
  if (device) return encode_fixed_letter(parcel, round, letter);
  std::size_t position = 0;
  for (Piece& piece : letter.pieces) {
    std::size_t const num_bytes = parcel.compressor().sum_bytes(round, piece.info, step);
    std::uint64_t written = 0;
    Body const body(letter.storage.subspan(position, num_bytes), &written);
    GRADSIEVE_RETURN_IF_ERROR(encode_piece(parcel, round, piece, body));
    if (written != num_bytes)
      return {Code::internal, "a sum round's body has another size than all ranks agreed on"};
    position += num_bytes;
  }
  seal(parcel, round, letter, false, {}, position);
  return {};
}

/// What of a header follows from the plan.
PayloadHeader Hook::Impl::header_of(Parcel const& parcel, int round, Letter const& letter,
                                    bool owned) const noexcept {
  PayloadHeader header;
  header.codec = parcel.chain->payload_id;
  header.rank = static_cast<std::uint32_t>(transport->rank());
  header.plan_hash = parcel.plan_hash;
  header.num_elements = letter.num_elements;
  header.round = static_cast<std::uint16_t>(round | (owned ? kOwnedRound : 0));
  header.num_pieces = static_cast<std::uint16_t>(letter.pieces.size());
  header.sequence = parcel.rounds[static_cast<std::size_t>(round)].sequence + (owned ? 1 : 0);
  return header;
}

// Completes a payload: header, or status lanes in a sum round. A failed one has no body.
void Hook::Impl::seal(Parcel& parcel, int round, Letter& letter, bool owned, Status status,
                      std::uint64_t body_bytes) noexcept {
  if (device) return seal_fixed(parcel, round, letter, owned, status);
  Round const& r = parcel.rounds[static_cast<std::size_t>(round)];
  std::uint16_t const flags = (parcel.words.flags & kStepNonFinite) != 0 ? kFlagNonFinite : 0;
  if (r.exchange == ExchangeKind::sum) {
    std::size_t num_bytes = 0;
    for (Piece const& piece : letter.pieces)
      num_bytes += parcel.compressor().sum_bytes(round, piece.info, step);
    if (!status.ok()) std::memset(letter.storage.data(), 0, num_bytes);
    double const own = transport->rank();
    bool const failed = !status.ok();
    bool const nonfinite = flags != 0;
    double const lanes[kNumLanes] = {failed ? 1.0 : 0.0, failed ? own : 0.0, nonfinite ? 1.0 : 0.0,
                                     nonfinite ? own : 0.0, static_cast<double>(history & 0xfff)};
    for (std::size_t i = 0; i < kNumLanes; ++i) {
      if (r.sum_dtype == DType::f64) {
        wire::store(letter.storage.data() + num_bytes + i * sizeof(double), lanes[i]);
      } else {
        wire::store(letter.storage.data() + num_bytes + i * sizeof(float),
                    static_cast<float>(lanes[i]));
      }
    }
    letter.length = num_bytes + kNumLanes * size_of(r.sum_dtype);
    return;
  }
  PayloadHeader header = header_of(parcel, round, letter, owned);
  header.flags = flags;
  header.status = static_cast<std::uint32_t>(status.code());
  header.step = step;
  header.plan_hash ^= history;
  header.body_bytes = body_bytes;
  wire::write_header(header, letter.storage);
  letter.length = wire::kHeaderBytes + static_cast<std::size_t>(body_bytes);
}

// The owner's half of a shard_sum: what it could not send goes to the log.
Status Hook::Impl::encode_owned(Parcel& parcel, int round) noexcept {
  Stopwatch const watch(parcel.encode_spent);
  Round& r = parcel.rounds[static_cast<std::size_t>(round)];
  ShardSink sink(parcel.undelivered);
  if (device) return encode_fixed_owned(parcel, round, sink);
  wire::PieceWriter writer(r.owned.storage, r.owned.pieces.size());
  std::span<float const> sum{reinterpret_cast<float const*>(r.sum.data()),
                             r.sum.size() / sizeof(float)};
  for (Piece& piece : r.owned.pieces) {
    std::size_t const count = static_cast<std::size_t>(piece.info.num_elements);
    ExecContext ctx = context(parcel, decode_workspace, decode_threads);
    ctx.owned = true;
    Body const body = writer.next(piece.capacity_bytes);
    GRADSIEVE_RETURN_IF_ERROR(parcel.compressor().encode_owned(
        ctx, round, piece.info, sum.first(count), parcel.lanes[piece.lane].state(), body, sink));
    writer.close();
    sum = sum.subspan(count);
  }
  parcel.undelivered_written = true;
  seal(parcel, round, r.owned, true, {}, writer.body_bytes());
  return {};
}

}  // namespace gradsieve
