// SPDX-License-Identifier: Apache-2.0
// What a hook decides on a device, in stream order, because no host may wait for it: is a payload
// to be believed, did the step fail, what did the vote say, and what follows for the residuals.
// Only builds with CUDA have these kernels. All pointers are device memory; a caller that cannot
// know whether something is needed launches it, and a word decides.
#pragma once

#include <cstdint>
#include <span>

#include "gradsieve/context.hpp"
#include "gradsieve/vocabulary.hpp"
#include "gradsieve/wire.hpp"

namespace gradsieve::kernels {

/// What became of a step, as in comm/vote.hpp; on a device nothing is ever in doubt, only unread.
enum class DeviceOutcome : std::uint32_t { none = 0, committed = 1, rolled_back = 2 };

/// What was wrong with a payload, or a step.
enum class FailedField : std::uint32_t {
  header,
  plan_hash,
  step,
  rank,
  round,
  status,
  num_elements,
  body,
  gradient,
  history,
};

/// The first thing that went wrong in a step.
struct DeviceFailure {
  std::uint32_t code = 0;  ///< Code, 0: nothing
  std::int32_t rank = -1;
  std::uint32_t parcel = 0;
  FailedField field = FailedField::header;
};

/// One of a hook.
struct DeviceStep {
  // Put there before the step, outside of what a graph captures.
  std::uint64_t next_step = 0;
  std::uint64_t next_attempt = 0;
  float next_loss_scale = 1.0F;
  // The step that runs or has run.
  float loss_scale = 1.0F;
  std::uint64_t step = 0;
  std::uint64_t attempt = 0;
  std::uint64_t history = 0;  ///< hash of all outcomes so far
  std::uint64_t committed_attempt = 0;
  std::uint64_t committed_attempt_before = 0;
  std::uint64_t vote = 0;   ///< step + 1, or 0: against
  std::uint64_t least = 0;  ///< the smallest of all ranks' votes
  DeviceOutcome outcome = DeviceOutcome::none;
  std::uint32_t committed = 0;  ///< 1 if the last finished step counts: optimizers may ask it
  std::uint32_t found_nonfinite = 0;
  DeviceFailure failure;
};

/// One of each parcel.
struct DeviceParcel {
  StepWords words;
  float decay = 1.0F;
  float residual_scale = 1.0F;  ///< loss scale that the committed residual was made at
  float carry = 1.0F;           ///< of ResidualView
  std::uint32_t reached = 0;    ///< 0 nothing, 1 compensated, 2 encoded: what a rollback undoes
  std::uint32_t found_nonfinite = 0;
  std::int32_t nonfinite_rank = -1;
  std::uint32_t gives_back = 0;  ///< the step before was rolled back: its payload returns
  std::uint32_t keeps = 0;       ///< the step before was committed
};

/// step->next_* ← what the host knows of the step to come.
void set_step(ExecContext const& ctx, std::uint64_t step, std::uint64_t attempt, float loss_scale,
              DeviceStep* device_step) noexcept;
/// words ← values, which the host knows.
void set_words(ExecContext const& ctx, std::span<std::uint64_t const> values,
               std::uint64_t* words) noexcept;

/// gives_back and keeps of every parcel ← what follows from the outcome of the step before.
void resolve_outcome(ExecContext const& ctx, DeviceStep const* step,
                     std::span<DeviceParcel> parcels) noexcept;
/// Words of a step that pieces have to know, and those of the step to come.
struct PieceWords {
  std::span<std::uint64_t const> next;
  std::uint64_t* current = nullptr;
};
/// Begins the next step: words, scales, flags. `keeps_on_rollback`: rollback=merge.
/// bucket_nonfinite ← 0.
void begin_step(ExecContext const& ctx, DeviceStep* step, std::span<DeviceParcel> parcels,
                bool keeps_on_rollback, PieceWords const& words,
                std::span<std::uint32_t> bucket_nonfinite) noexcept;

/// The first 64 bytes of `payload` ← header, completed from the words as by write_header, with the
/// step's history in plan_hash. parcel->reached ← `reached`.
void seal_letter(ExecContext const& ctx, PayloadHeader const& header, std::uint64_t body_bytes,
                 DeviceStep const* step, DeviceParcel* parcel, std::uint32_t reached,
                 std::byte* payload) noexcept;

/// What a sender's payload has to say.
struct LetterCheck {
  PayloadHeader expected;  ///< codec, rank, plan_hash without history, num_elements, body_bytes, …
  std::uint32_t parcel_index = 0;
  bool nonfinite_is_error = false;
  bool tells_others = false;  ///< a non-finite flag goes on into this rank's next header
  DeviceStep* step = nullptr;
  DeviceParcel* parcel = nullptr;
  std::uint32_t* bucket_nonfinite = nullptr;
};
/// Checks a received header: what is wrong goes to step->failure, a non-finite flag to the parcel
/// and the bucket.
void open_letter(ExecContext const& ctx, LetterCheck const& check,
                 std::byte const* payload) noexcept;

/// The status lanes of a sum round (comm/parcel.hpp), f32, behind its array.
inline constexpr unsigned kNumStatusLanes = 5;
void write_lanes(ExecContext const& ctx, bool failed, DeviceStep const* step, DeviceParcel* parcel,
                 std::uint32_t reached, float* lanes) noexcept;
/// `check.expected.rank` is not looked at.
void read_lanes(ExecContext const& ctx, LetterCheck const& check, float const* lanes) noexcept;

/// All elements ← canonical NaN, or 0, if *word is not 0.
void fill_if(ExecContext const& ctx, std::uint32_t const* word, bool with_nan,
             TensorView values) noexcept;
/// to ← from if *word is not 0. Both begin at multiples of 16 bytes.
void copy_if(ExecContext const& ctx, std::uint32_t const* word, std::span<std::byte const> from,
             std::span<std::byte> to) noexcept;

/// step->vote ← step + 1, or 0 if this rank knows of something wrong or non-finite.
void cast_vote(ExecContext const& ctx, bool host_is_well, DeviceStep* step,
               std::span<DeviceParcel const> parcels) noexcept;
/// outcome ← committed if step->least says so, else rolled back.
void tally(ExecContext const& ctx, DeviceStep* step) noexcept;
/// The same with an outcome that hosts have agreed on.
void set_outcome(ExecContext const& ctx, DeviceOutcome outcome, DeviceStep* step) noexcept;
/// A committed step becomes a rolled back one.
void refuse_step(ExecContext const& ctx, DeviceStep* step) noexcept;

}  // namespace gradsieve::kernels
