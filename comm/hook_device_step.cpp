// SPDX-License-Identifier: Apache-2.0
// The transaction of a hook on a device. Over a transport in stream order the host enqueues and
// reads nothing: the vote, its outcome and what follows from it are words on the device.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "comm/hook_impl.hpp"
#include "core/philox.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {
namespace {

char const* field_name(kernels::FailedField field) noexcept {
  switch (field) {
    case kernels::FailedField::header:
      return "header";
    case kernels::FailedField::plan_hash:
      return "plan_hash";
    case kernels::FailedField::step:
      return "step";
    case kernels::FailedField::rank:
      return "rank";
    case kernels::FailedField::round:
      return "round";
    case kernels::FailedField::status:
      return "status";
    case kernels::FailedField::num_elements:
      return "num_elements";
    case kernels::FailedField::body:
      return "body";
    case kernels::FailedField::gradient:
      return "gradient";
    case kernels::FailedField::history:
      return "history";
  }
  return "";
}

char const* sentence_of(Code code) noexcept {
  switch (code) {
    case Code::mismatch:
      return "a payload of another plan, step or history";
    case Code::peer_failed:
      return "a rank reports that it failed";
    case Code::non_finite:
      return "a gradient element of some rank is NaN or infinite";
    default:
      return "a payload is not what it claims to be";
  }
}

/// Waits for an event while another thread looks after the exchange: what has failed, or takes too
/// long, is aborted, and then the event comes.
class Watchdog {
 public:
  Watchdog(Transport& transport, DeviceExchange& exchange, Deadline deadline)
      : transport_(transport), exchange_(exchange), deadline_(deadline) {}

  Status wait(StreamEvent const& event) {
    std::thread watcher([this] { watch(); });
    Status const passed = event.wait();
    {
      std::lock_guard const lock(mutex_);
      is_over_ = true;
    }
    over_.notify_all();
    watcher.join();
    return found_.ok() ? passed : found_;
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!over_.wait_for(lock, std::chrono::milliseconds(1), [this] { return is_over_; })) {
      found_ = exchange_.check();
      if (found_.ok() && Clock::now() >= deadline_)
        found_ = {Code::timeout, "the ranks did not finish the step's exchanges in time"};
      if (!found_.ok()) return transport_.abort();
    }
  }

  Transport& transport_;
  DeviceExchange& exchange_;
  Deadline deadline_;
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  Status found_;
};

}  // namespace

// --- a step --------------------------------------------------------------------------------------

/// Work of the own stream comes after what the caller has enqueued so far.
Status Hook::Impl::fork_device() noexcept {
  GRADSIEVE_RETURN_IF_ERROR(device->fork.record(device->caller));
  return device->fork.hold(stream());
}

void Hook::Impl::set_device_words(Stream where) noexcept {
  StepWords words;
  words.step = step;
  words.loss_scale = loss_scale;
  for (Parcel const& parcel : parcels) {
    for (Round const& round : parcel.rounds) {
      for (Letter const& letter : round.letters) {
        for (Piece const& piece : letter.pieces) {
          on_device.piece_values[piece.word] = parcel.compressor().step_word(piece.info, words);
        }
      }
    }
  }
  ExecContext ctx = device_context();
  ctx.stream = where;
  kernels::set_step(ctx, step, attempt, loss_scale, device->step());
  kernels::set_words(ctx, on_device.piece_values, on_device.next_words.as<std::uint64_t>().data());
}

Status Hook::Impl::begin_on_device() noexcept {
  Status status = fork_device();
  // What a graph replays finds the words that replay() has put there.
  if (status.ok() && !is_capturing(device->caller)) set_device_words(stream());
  if (status.ok()) {
    ExecContext const ctx = device_context();
    std::span<kernels::DeviceParcel> const all = on_device.parcels.as<kernels::DeviceParcel>();
    kernels::resolve_outcome(ctx, device->step(), all);
    for (Parcel& parcel : parcels) settle_on_device(parcel);
    kernels::begin_step(ctx, device->step(), all, options.rollback == Rollback::merge,
                        {.next = on_device.next_words.as<std::uint64_t const>(),
                         .current = on_device.piece_words.as<std::uint64_t>().data()},
                        on_device.bucket_nonfinite.as<std::uint32_t>());
    status = device->error();
  }
  outcome = Outcome::none;
  if (!status.ok()) in_step = false;
  return status;
}

/// What retain took for a step that was rolled back comes back from its payloads.
void Hook::Impl::give_back(Parcel& parcel, std::span<float> target,
                           std::uint32_t const* only_if) noexcept {
  Round const& last = parcel.rounds.back();
  for (Letter const& letter : last.letters) {
    if (letter.batch != nullptr) {
      ExecContext ctx = context(parcel, decode_workspace, decode_threads);
      ctx.only_if = only_if;
      ctx.piece_word = on_device.piece_words.as<std::uint64_t>().data();
      static_cast<void>(letter.batch->decode_add(ctx, letter.storage, 1.0, target,
                                                 Batch::Sums::as_residual, false));
    }
    for (Piece const& piece : letter.pieces) {
      if (piece.is_batched) continue;
      ExecContext ctx = context(parcel, decode_workspace, decode_threads);
      ctx.only_if = only_if;
      ctx.piece_word = on_device.piece_words.as<std::uint64_t>().data() + piece.word;
      std::span<float> const place =
          target.subspan(static_cast<std::size_t>(piece.parcel_offset),
                         static_cast<std::size_t>(piece.info.num_elements));
      static_cast<void>(parcel.compressor().decode_add(
          ctx, parcel.last_round(), piece.info,
          ConstBytes(letter.storage).subspan(piece.body_offset, piece.capacity_bytes), 1.0,
          parcel.lanes[piece.lane].state(), TensorView(place)));
    }
  }
}

void Hook::Impl::add_undelivered(Parcel& parcel, std::span<float> target,
                                 std::uint32_t const* only_if) noexcept {
  if (parcel.undelivered.empty()) return;
  ExecContext ctx = context(parcel, decode_workspace, decode_threads);
  ctx.only_if = only_if;
  // A shard is a range of the parcel, whatever tensors it cuts.
  std::span<float const> const log = parcel.undelivered;
  std::uint64_t const begin = parcel.rounds.back().owned.pieces.front().parcel_offset;
  kernels::add_scaled(ctx, ConstTensorView(log), static_cast<float>(1.0 / weight()),
                      target.subspan(static_cast<std::size_t>(begin), log.size()));
}

void Hook::Impl::settle_on_device(Parcel& parcel) noexcept {
  if (!parcel.with_residual) return;
  kernels::DeviceParcel* const words = device_parcel(parcel);
  std::size_t const count = static_cast<std::size_t>(parcel.num_elements);
  std::span<float> const current = parcel.current.as<float>().first(count);
  if (options.rollback == Rollback::exact) {
    add_undelivered(parcel, parcel.next.as<float>().first(count), &words->keeps);
    kernels::copy_if(context(parcel, decode_workspace, decode_threads), &words->keeps,
                     parcel.next.bytes(), parcel.current.bytes());
    return;
  }
  give_back(parcel, current, &words->gives_back);
  add_undelivered(parcel, current, &words->keeps);
}

// --- its end -------------------------------------------------------------------------------------

Status Hook::Impl::finish_on_device(bool well) noexcept {
  ExecContext const ctx = device_context();
  kernels::DeviceStep* const words = device->step();
  kernels::cast_vote(ctx, well && device->error().ok(), words,
                     on_device.parcels.as<kernels::DeviceParcel const>());
  GRADSIEVE_RETURN_IF_ERROR(device->error());
  if (!on_device.exchange->is_asynchronous()) {
    GRADSIEVE_RETURN_IF_ERROR(fetch_device_state());
    return gradsieve::synchronize(stream());
  }
  GRADSIEVE_RETURN_IF_ERROR(
      on_device.exchange->all_reduce_min(stream(), &words->vote, &words->least));
  kernels::tally(ctx, words);
  GRADSIEVE_RETURN_IF_ERROR(device->join.record(stream()));
  GRADSIEVE_RETURN_IF_ERROR(device->join.hold(device->caller));
  return device->error();
}

StepResult Hook::Impl::leave_pending(StepResult result) noexcept {
  in_step = false;
  outcome = Outcome::none;
  counts = false;
  device->is_unread = true;
  result.pending = true;
  last_result = result;
  return result;
}

/// Hosts have voted: the device is told, and the caller's stream goes on after it.
void Hook::Impl::put_outcome() noexcept {
  if (outcome != Outcome::committed && outcome != Outcome::rolled_back) return;
  kernels::set_outcome(device_context(),
                       outcome == Outcome::committed ? kernels::DeviceOutcome::committed
                                                     : kernels::DeviceOutcome::rolled_back,
                       device->step());
  if (device->join.record(stream()).ok()) static_cast<void>(device->join.hold(device->caller));
}

Status Hook::Impl::fetch_device_state() noexcept {
  std::byte* const copies = on_device.read_back.data();
  GRADSIEVE_RETURN_IF_ERROR(
      copy_in_order(stream(), device->step(), copies, sizeof(kernels::DeviceStep)));
  return copy_in_order(stream(), on_device.parcels.data(), copies + sizeof(kernels::DeviceStep),
                       on_device.parcels.num_bytes());
}

/// From the words that were fetched to what the host keeps.
void Hook::Impl::take_device_findings(StepResult& result) noexcept {
  auto const& words = *reinterpret_cast<kernels::DeviceStep const*>(on_device.read_back.data());
  auto const* const copies = reinterpret_cast<kernels::DeviceParcel const*>(&words + 1);
  for (Parcel& parcel : parcels) {
    kernels::DeviceParcel const& copy = copies[parcel.index];
    parcel.words = copy.words;
    // Counts are a parcel's there: they stand with its first piece.
    if (!parcel.rounds.empty() && !parcel.rounds.back().letters[0].pieces.empty()) {
      Piece& first = parcel.rounds.back().letters[0].pieces[0];
      first.kept_elements = copy.words.kept_elements;
      first.overflowed_elements = copy.words.overflowed_elements;
    }
    parcel.residual_scale = copy.residual_scale;
    parcel.reached = static_cast<Reached>(copy.reached);
    parcel.found_nonfinite = copy.found_nonfinite != 0;
    parcel.nonfinite_rank = copy.nonfinite_rank;
  }
  result.found_nonfinite = result.found_nonfinite || words.found_nonfinite != 0;
  if (words.failure.code == 0) return;
  auto const code = static_cast<Code>(words.failure.code);
  Status const status{code, sentence_of(code)};
  blame(parcels[words.failure.parcel], status, words.failure.rank, field_name(words.failure.field));
  if (result.status.ok()) result.status = status;
}

StepResult Hook::Impl::synchronize() noexcept {
  if (!device || !device->is_unread || in_step) return last_result;
  StepResult result = last_result;
  result.pending = false;
  Status status = fork_device();  // a graph ran on the caller's stream
  if (status.ok()) status = fetch_device_state();
  if (status.ok()) status = device->join.record(stream());
  if (status.ok()) {
    try {
      status = Watchdog(*transport, *on_device.exchange, Clock::now() + options.vote_deadline)
                   .wait(device->join);
    } catch (...) {
      status = {Code::out_of_memory, "synchronize: no thread to look after the deadline"};
    }
  }
  device->is_unread = false;
  if (!status.ok()) {
    outcome = Outcome::in_doubt;
    if (!parcels.empty()) blame(parcels[0], status, -1, "exchange");
    if (result.status.ok()) result.status = status;
    last_result = result;
    return result;
  }
  auto const& words = *reinterpret_cast<kernels::DeviceStep const*>(on_device.read_back.data());
  take_device_findings(result);
  outcome = static_cast<Outcome>(words.outcome);
  history = words.history;
  committed_attempt = words.committed_attempt;
  committed_attempt_before = words.committed_attempt_before;
  counts = result.committed = outcome == Outcome::committed;
  bool const knew = result.found_nonfinite || !result.status.ok();
  if (!counts && !knew)
    result.status = {Code::peer_failed, "finish: a rank voted against the step"};
  report(result);
  last_result = result;
  return result;
}

Status Hook::Impl::refuse_on_device() noexcept {
  if (device->is_unread) {  // then only the device knows whether there is something to refuse
    GRADSIEVE_RETURN_IF_ERROR(fork_device());
    kernels::refuse_step(device_context(), device->step());
    return device->error();
  }
  kernels::refuse_step(device_context(), device->step());
  auto const number = static_cast<std::uint64_t>(Outcome::rolled_back);
  history = mix64(history ^ mix64(4 * step + number));
  return device->error();
}

Status Hook::Impl::replay(std::uint64_t new_step, float new_loss_scale) noexcept {
  if (!device || !progress || !on_device.exchange->is_asynchronous()) {
    return {Code::invalid_usage,
            "replay: only a hook with backend=cuda over a transport in stream order, after plan"};
  }
  if (in_step) return {Code::invalid_usage, "replay: a step is running; call finish first"};
  if (outcome == Outcome::in_doubt)
    return {Code::in_doubt, "replay: the outcome of the last step is unknown; call recover"};
  if (!(new_loss_scale > 0.0F) || !(new_loss_scale <= std::numeric_limits<float>::max()))
    return {Code::invalid_argument, "replay: the loss scale must be positive and finite"};
  if (next_rules.upper_bound(new_step) != next_rules.begin()) {
    return {Code::invalid_usage,
            "replay: other rules are due at this step; begin it, and capture again after it"};
  }
  ++attempt;
  step = new_step;
  loss_scale = new_loss_scale;
  set_device_words(device->caller);
  last_result = {};
  static_cast<void>(leave_pending({}));
  return device->error();
}

/// The survivors have agreed on the doubtful step; the device learns it before it is used again.
Status Hook::Impl::recover_on_device(Transport& other) noexcept {
  auto* const copy = reinterpret_cast<kernels::DeviceStep*>(on_device.read_back.data());
  kernels::DeviceStep words;
  GRADSIEVE_RETURN_IF_ERROR(copy_in_order(stream(), device->step(), copy, sizeof words));
  GRADSIEVE_RETURN_IF_ERROR(gradsieve::synchronize(stream()));
  words = *copy;
  words.history = history;
  words.attempt = attempt;
  words.committed_attempt = committed_attempt;
  words.committed_attempt_before = committed_attempt_before;
  words.outcome = static_cast<kernels::DeviceOutcome>(outcome);
  words.committed = counts ? 1 : 0;
  *copy = words;
  GRADSIEVE_RETURN_IF_ERROR(copy_in_order(stream(), copy, device->step(), sizeof words));
  GRADSIEVE_RETURN_IF_ERROR(gradsieve::synchronize(stream()));
  if (&other == transport) return {};
  transport = &other;
  progress.reset();  // payloads go another way now: plan again
  return {};
}

}  // namespace gradsieve
