// SPDX-License-Identifier: Apache-2.0
// A step is a transaction: begin applies the outcome of the step before, finish votes on this one.
#include <algorithm>
#include <cstring>
#include <utility>

#include <unistd.h>

#include "comm/hook_impl.hpp"
#include "core/hash.hpp"
#include "core/philox.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {

Status Hook::Impl::begin(std::uint64_t new_step, float new_loss_scale) noexcept {
  if (getpid() != process_id)
    return {Code::forked_child, "this process was forked: only the parent may call"};
  if (!progress) return {Code::invalid_usage, "begin: call plan first"};
  if (in_step) return {Code::invalid_usage, "begin: the step before was not finished"};
  if (outcome == Outcome::in_doubt) {
    return {Code::in_doubt,
            "begin: the outcome of the last step is unknown; call recover or restart from a "
            "checkpoint"};
  }
  // Before anything changes: a rank that is refused may call again, in step with the others.
  if (!(new_loss_scale > 0.0F) || !(new_loss_scale <= std::numeric_limits<float>::max())) {
    return {Code::invalid_argument, "begin: the loss scale must be positive and finite"};
  }
  GRADSIEVE_RETURN_IF_ERROR(take_due_rules(new_step));
  ++attempt;
  first_tag = std::exchange(end_tag, end_tag + num_sequences + 1);  // the last one is the vote's
  if (!device) settle();
  step = new_step;
  loss_scale = new_loss_scale;
  in_step = true;
  step_failed = false;
  std::fill_n(gone.get(), vote_words.size(), false);
  {
    std::lock_guard const lock(failure_mutex);
    last_failure.code = Code::ok;
    vetoed = {};
  }
  for (Parcel& parcel : parcels) {
    parcel.words = {};
    parcel.words.step = step;
    parcel.words.loss_scale = loss_scale;
    parcel.words.parity = static_cast<std::uint32_t>(step & 1);
    parcel.reached = Reached::idle;
    parcel.status = {};
    parcel.submitted = false;
    parcel.undelivered_written = false;
    parcel.found_nonfinite = false;
    parcel.nonfinite_rank = -1;
    parcel.encode_spent = parcel.decode_spent = {};
    parcel.exchange_seconds = 0.0;
    parcel.wire_bytes = 0;
  }
  return device ? begin_on_device() : Status{};
}

Status Hook::Impl::veto(Status status) noexcept {
  if (!in_step) return {Code::invalid_usage, "veto: call begin first"};
  if (status.ok()) return {Code::invalid_argument, "veto: expected what went wrong"};
  std::lock_guard const lock(failure_mutex);
  if (!vetoed.ok()) return {};
  vetoed = {status.code(), "finish: this rank vetoed the step"};
  step_failed = true;
  if (last_failure.code == Code::ok) {
    last_failure = {};
    last_failure.code = status.code();
  }
  return {};
}

StepResult Hook::Impl::finish() noexcept {
  StepResult result;
  if (getpid() != process_id) {
    result.status = {Code::forked_child, "this process was forked: only the parent may call"};
    return result;
  }
  if (!in_step) {
    result.status = {Code::invalid_usage, "finish: call begin first"};
    return result;
  }
  progress->drain(Progress::kAll);
  for (Parcel& parcel : parcels) {
    if (!parcel.status.ok() && result.status.ok()) result.status = parcel.status;
    result.found_nonfinite = result.found_nonfinite || parcel.found_nonfinite;
    parcel.total_wire_bytes += parcel.wire_bytes;
    parcel.total_encode_spent += parcel.encode_spent;
    parcel.total_decode_spent += parcel.decode_spent;
    parcel.total_exchange_seconds += parcel.exchange_seconds;
  }
  if (std::lock_guard const lock(failure_mutex); result.status.ok()) result.status = vetoed;

  if (device) {
    Status const status = finish_on_device(result.status.ok());
    if (result.status.ok()) result.status = status;
    if (on_device.exchange->is_asynchronous()) return leave_pending(result);
    take_device_findings(result);
  }

  // All ranks know of a non-finite gradient by now, so all vote against, and that is no failure.
  bool const ok = result.status.ok() && !result.found_nonfinite;
  std::optional<TraceRange> range(std::in_place, observer.get(), "vote",
                                  static_cast<std::uint32_t>(buckets.size()));
  std::fill_n(unheard.get(), vote_words.size(), false);
  control.transport = transport;
  control.deadline = Clock::now() + options.vote_deadline;
  control.tag = tag(num_sequences) | 0x04000000u;
  control.blamed_rank = -1;
  VoteResult const voted = vote(control, step, ok, vote_words, {heard.get(), vote_words.size()});
  range.reset();
  in_step = false;
  outcome = voted.outcome;
  result.committed = outcome == Outcome::committed;
  counts = result.committed;
  if (counts) committed_attempt_before = std::exchange(committed_attempt, attempt);
  close_history();

  auto const record = [&](Status status, int rank, char const* field) noexcept {
    std::lock_guard const lock(failure_mutex);
    try {
      if (last_failure.code == Code::ok)
        last_failure = {status.code(), rank, "", field, status.message()};
      // The roll call knows better than a deadline who is gone: a rank that answers is only a
      // victim, also where it says that it failed.
      bool const follows =
          last_failure.code == Code::timeout || last_failure.code == Code::peer_failed;
      if (voted.missing_rank >= 0 && follows) last_failure.rank = voted.missing_rank;
    } catch (...) {
      last_failure.code = status.code();
    }
  };
  if (outcome == Outcome::in_doubt) {
    result.status = {Code::in_doubt,
                     "finish: some rank's vote did not arrive; the outcome is unknown here"};
    record(result.status, voted.missing_rank, "vote");
  } else if (!result.status.ok()) {
    record(result.status, -1, "exchange");
  } else if (outcome == Outcome::rolled_back && ok) {
    result.status = {Code::peer_failed, "finish: a rank voted against the step"};
    record(result.status, voted.refusing_rank, "vote");
  }
  report(result);
  last_result = result;
  return result;
}

// One word for all outcomes so far. A device that votes by itself makes the same one.
void Hook::Impl::close_history() noexcept {
  if (!device) {
    history = PlanHash(history).add(step).add(outcome).value();
    return;
  }
  auto const number = static_cast<std::uint64_t>(outcome);
  history = mix64(history ^ mix64(4 * step + number));
  if (!on_device.exchange->is_asynchronous()) put_outcome();
}

Status Hook::Impl::refuse() noexcept {
  if (device && device->is_unread && !in_step) return refuse_on_device();
  if (in_step || outcome != Outcome::committed) {
    return {Code::invalid_usage,
            "refuse: only a committed step can be refused, before the next begin"};
  }
  outcome = Outcome::rolled_back;
  counts = false;
  committed_attempt = committed_attempt_before;
  last_result.committed = false;
  if (device) return refuse_on_device();
  close_history();
  return {};
}

// Survivors compare what they know of the doubtful step. One that committed it has seen every vote,
// so all others may commit too; if none did, nobody has used the results. Who committed may have
// begun the next step since, and failed there: so the answer is not its last outcome, but the last
// step that counted.
Status Hook::Impl::recover(Transport& other) noexcept {
  if (in_step) return {Code::invalid_usage, "recover: a step is running; call finish first"};
  if (device) static_cast<void>(synchronize());
  std::size_t const world_size = static_cast<std::size_t>(other.world_size());
  try {
    std::vector<Request> fresh(2 * world_size);
    std::vector<std::uint64_t> known(world_size);
    auto const answered = std::make_unique<bool[]>(world_size);
    auto const absent = std::make_unique<bool[]>(world_size);
    exchange::ExchangeContext context;
    context.transport = &other;
    context.requests = fresh;
    context.gone = {absent.get(), world_size};
    context.channel = Channel::control;
    context.tag = 0x0e000000u;
    context.deadline = Clock::now() + options.vote_deadline;
    auto const latest = [&](std::uint64_t own, std::uint64_t& of_all) noexcept {
      Status const status =
          exchange::all_gather_word(context, own, known, {answered.get(), world_size});
      ++context.tag;
      of_all = *std::ranges::max_element(known);
      return status;
    };
    std::uint64_t last_committed = 0;
    std::uint64_t last_attempt = 0;
    GRADSIEVE_RETURN_IF_ERROR(latest(committed_attempt, last_committed));
    GRADSIEVE_RETURN_IF_ERROR(latest(attempt, last_attempt));
    GRADSIEVE_RETURN_IF_ERROR(latest(end_tag, end_tag));
    if (outcome == Outcome::in_doubt) {
      counts = last_committed == attempt;
      outcome = counts ? Outcome::committed : Outcome::rolled_back;
    }
    // Ranks may have counted the doubtful step differently; from here on they share one history.
    attempt = last_attempt;
    committed_attempt = committed_attempt_before = last_committed;
    history = PlanHash(options.epoch).add(last_attempt).add(last_committed).value();
  } catch (...) {
    return {Code::out_of_memory, "recover: no memory for the survivors' answers"};
  }
  if (device) return recover_on_device(other);
  if (&other == transport) return {};
  settle();
  bool const same_place =
      other.rank() == transport->rank() && other.world_size() == transport->world_size();
  transport = &other;
  if (!same_place) progress.reset();  // weights, shards and buffers are another group's: plan again
  return {};
}

// ----------------------------------------------------------------------------------------- outcome

void Hook::Impl::settle() noexcept {
  if (outcome != Outcome::committed && outcome != Outcome::rolled_back) return;
  for (Parcel& parcel : parcels) settle(parcel);
  outcome = Outcome::none;
}

float Hook::Impl::resolved_scale(Parcel const& parcel, Outcome what) const noexcept {
  bool const touched = parcel.reached != Reached::idle;
  bool const kept = options.rollback == Rollback::merge || what == Outcome::committed;
  return touched && kept && what != Outcome::none ? loss_scale : parcel.residual_scale;
}

void Hook::Impl::resolve(Parcel& parcel, Outcome what, std::span<float> target) noexcept {
  ExecContext const ctx = context(parcel, decode_workspace, decode_threads);
  bool const exact = options.rollback == Rollback::exact;
  bool const from_next = exact && what == Outcome::committed && parcel.reached == Reached::encoded;
  Buffer const& source = from_next ? parcel.next : parcel.current;
  std::size_t const count = target.size();
  if (parcel.residual_dtype == DType::bf16) {
    kernels::widen(ctx, TensorView(source.as<BFloat16>().first(count)), target);
  } else if (count > 0 && target.data() != source.as<float>().data()) {
    std::memcpy(target.data(), source.data(), count * sizeof(float));
  }
  if (parcel.reached != Reached::encoded) return;

  if (what == Outcome::rolled_back && !exact) {
    // What retain took for this step comes back from the payloads that would have carried it.
    Round const& last = parcel.rounds.back();
    for (Letter const& letter : last.letters) {
      wire::PieceReader reader = [&] {
        PayloadHeader header;
        if (last.exchange != ExchangeKind::sum)
          std::memcpy(&header, letter.storage.data(), sizeof header);
        return wire::PieceReader(letter.bytes(), header);
      }();
      std::size_t position = 0;
      for (Piece const& piece : letter.pieces) {
        ConstBytes body;
        if (last.exchange == ExchangeKind::sum) {
          std::size_t const num_bytes =
              parcel.compressor().sum_bytes(parcel.last_round(), piece.info, step);
          body = letter.bytes().subspan(position, num_bytes);
          position += num_bytes;
        } else if (!reader.next(body).ok()) {
          return;
        }
        std::span<float> const place =
            target.subspan(static_cast<std::size_t>(piece.parcel_offset),
                           static_cast<std::size_t>(piece.info.num_elements));
        ExecContext const piece_ctx = context(parcel, decode_workspace, decode_threads);
        static_cast<void>(
            parcel.compressor().decode_add(piece_ctx, parcel.last_round(), piece.info, body, 1.0,
                                           parcel.lanes[piece.lane].state(), TensorView(place)));
      }
    }
  }
  if (what == Outcome::committed && parcel.undelivered_written) {
    std::span<float const> log = parcel.undelivered;
    float const factor =
        static_cast<float>(1.0 / weight());  // from units of the sum to the local gradient's
    for (Piece const& piece : parcel.rounds.back().owned.pieces) {
      std::size_t const size = static_cast<std::size_t>(piece.info.num_elements);
      kernels::add_scaled(ctx, ConstTensorView(log.first(size)), factor,
                          target.subspan(static_cast<std::size_t>(piece.parcel_offset), size));
      log = log.subspan(size);
    }
  }
}

void Hook::Impl::settle(Parcel& parcel) noexcept {
  if (parcel.with_residual && parcel.reached != Reached::idle) {
    bool const exact = options.rollback == Rollback::exact;
    float const scale = resolved_scale(parcel, outcome);
    bool const changes = (outcome == Outcome::rolled_back && !exact) ||
                         (outcome == Outcome::committed && parcel.undelivered_written);
    if (parcel.residual_dtype == DType::bf16) {
      if (changes) resolve(parcel, outcome, parcel.scratch);
      if (exact && outcome == Outcome::committed) parcel.current.swap(parcel.next);
      if (changes) {
        ExecContext const ctx = context(parcel, decode_workspace, decode_threads);
        for (Lane const& lane : parcel.lanes) {
          std::size_t const offset = static_cast<std::size_t>(lane.parcel_offset);
          std::size_t const count = static_cast<std::size_t>(lane.info.num_elements);
          // Numbers of their own: this step's were used when the residual was first stored.
          std::uint32_t const again = static_cast<std::uint32_t>(transport->rank()) | 0x80000000u;
          RoundingKey const key{philox_key(options.seed, lane.info.id, Purpose::residual, again),
                                step, lane.info.offset_elements};
          kernels::store_bf16(ctx, parcel.scratch.subspan(offset, count), key,
                              parcel.current.as<BFloat16>().subspan(offset, count));
        }
      }
    } else if (exact && outcome == Outcome::committed) {
      if (changes)
        resolve(parcel, outcome,
                parcel.next.as<float>().first(static_cast<std::size_t>(parcel.num_elements)));
      parcel.current.swap(parcel.next);
    } else if (changes) {
      resolve(parcel, outcome,
              parcel.current.as<float>().first(static_cast<std::size_t>(parcel.num_elements)));
    }
    parcel.residual_scale = scale;
  }
  for (Lane& lane : parcel.lanes) {
    for (std::size_t i = 0; i < lane.slots.size(); ++i) {
      SlotState& slot = lane.slots[i];
      if (*slot.written && outcome == Outcome::committed) {
        slot.committed.swap(slot.next);
        lane.slot_views[i].committed = slot.committed.bytes();
        lane.slot_views[i].next = slot.next.bytes();
      }
      *slot.written = false;
    }
  }
  parcel.reached = Reached::idle;
  parcel.undelivered_written = false;
}

}  // namespace gradsieve
