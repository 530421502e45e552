// SPDX-License-Identifier: Apache-2.0
#include "core/philox.hpp"
#include "kernels/cuda/stream.cuh"
#include "kernels/device_step.hpp"
#include "kernels/header_fields.hpp"

namespace gradsieve::kernels {
namespace {

using cuda::launch;

/// One block that looks at all parcels.
struct ParcelsPolicy {
  static constexpr unsigned threads = 128, min_blocks = 1;
};
struct HeaderPolicy {
  static constexpr unsigned threads = sizeof(PayloadHeader), min_blocks = 1;
};
/// A few words in an order: nothing to share.
struct WordsPolicy {
  static constexpr unsigned threads = 1, min_blocks = 1;
};
struct FillPolicy {
  static constexpr unsigned threads = 256, items_per_thread = 4, min_blocks = 4;
};

/// Words that travel as an argument of the launch.
constexpr unsigned kWordsPerLaunch = 128;
struct WordBlock {
  std::uint64_t words[kWordsPerLaunch];
};

__global__ void __launch_bounds__(WordsPolicy::threads, WordsPolicy::min_blocks)
    set_step_kernel(std::uint64_t number, std::uint64_t attempt, float loss_scale,
                    DeviceStep* step) {
  step->next_step = number;
  step->next_attempt = attempt;
  step->next_loss_scale = loss_scale;
}

__global__ void __launch_bounds__(kWordsPerLaunch, 1)
    set_words_kernel(WordBlock const block, unsigned count, std::uint64_t* words) {
  __shared__ WordBlock shared;
  if (threadIdx.x == 0) shared = block;
  __syncthreads();
  if (threadIdx.x < count) words[threadIdx.x] = shared.words[threadIdx.x];
}

__global__ void __launch_bounds__(ParcelsPolicy::threads, ParcelsPolicy::min_blocks)
    resolve_outcome_kernel(DeviceStep const* step, DeviceParcel* parcels, std::uint64_t count) {
  for (std::uint64_t i = threadIdx.x; i < count; i += ParcelsPolicy::threads) {
    bool const encoded = parcels[i].reached == 2;
    parcels[i].gives_back = encoded && step->outcome == DeviceOutcome::rolled_back ? 1 : 0;
    parcels[i].keeps = encoded && step->outcome == DeviceOutcome::committed ? 1 : 0;
  }
}

__device__ void begin_parcel(DeviceStep const& step, bool keeps_on_rollback, DeviceParcel& parcel) {
  bool const is_kept = step.outcome == DeviceOutcome::committed ||
                       (keeps_on_rollback && step.outcome == DeviceOutcome::rolled_back);
  float const residual_scale =
      parcel.reached != 0 && is_kept ? step.loss_scale : parcel.residual_scale;
  parcel.residual_scale = residual_scale;
  parcel.carry = static_cast<float>(
      static_cast<double>(parcel.decay) *
      (static_cast<double>(step.next_loss_scale) / static_cast<double>(residual_scale)));
  parcel.words.step = step.next_step;
  parcel.words.loss_scale = step.next_loss_scale;
  parcel.words.parity = static_cast<std::uint32_t>(step.next_step & 1);
  parcel.words.flags = 0;
  parcel.words.kept_elements = 0;
  parcel.words.overflowed_elements = 0;
  parcel.reached = 0;
  parcel.found_nonfinite = 0;
  parcel.nonfinite_rank = -1;
}

__global__ void __launch_bounds__(ParcelsPolicy::threads, ParcelsPolicy::min_blocks)
    begin_step_kernel(DeviceStep* step, DeviceParcel* parcels, std::uint64_t count,
                      bool keeps_on_rollback, PieceWords const words,
                      std::uint32_t* bucket_nonfinite, std::uint64_t num_buckets) {
  for (std::uint64_t i = threadIdx.x; i < count; i += ParcelsPolicy::threads) {
    begin_parcel(*step, keeps_on_rollback, parcels[i]);
  }
  for (std::uint64_t i = threadIdx.x; i < num_buckets; i += ParcelsPolicy::threads) {
    bucket_nonfinite[i] = 0;
  }
  for (std::uint64_t i = threadIdx.x; i < words.next.size(); i += ParcelsPolicy::threads) {
    words.current[i] = words.next[i];
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  step->step = step->next_step;
  step->attempt = step->next_attempt;
  step->loss_scale = step->next_loss_scale;
  step->outcome = DeviceOutcome::none;
  step->committed = 0;
  step->found_nonfinite = 0;
  step->failure.code = 0;
}

__global__ void __launch_bounds__(HeaderPolicy::threads, HeaderPolicy::min_blocks)
    seal_letter_kernel(PayloadHeader const header, std::uint64_t body_bytes, DeviceStep const* step,
                       DeviceParcel* parcel, std::uint32_t reached, std::byte* payload) {
  __shared__ PayloadHeader whole;
  if (threadIdx.x == 0) {
    whole = completed(header, parcel->words, body_bytes);
    whole.plan_hash ^= step->history;
    if (header.status == 0) parcel->reached = reached;
  }
  __syncthreads();
  payload[threadIdx.x] = reinterpret_cast<std::byte const*>(&whole)[threadIdx.x];
}

/// Keeps the first failure of a step; work on a stream has an order, so there is a first.
__device__ void keep_failure(LetterCheck const& check, Code code, std::int32_t rank,
                             FailedField field) {
  DeviceFailure& failure = check.step->failure;
  if (failure.code != 0) return;
  failure = {static_cast<std::uint32_t>(code), rank, check.parcel_index, field};
}

__device__ void keep_nonfinite(LetterCheck const& check, std::int32_t rank) {
  check.parcel->found_nonfinite = 1;
  if (check.parcel->nonfinite_rank < 0) check.parcel->nonfinite_rank = rank;
  *check.bucket_nonfinite = 1;
  if (check.tells_others) check.parcel->words.flags |= kStepNonFinite;
  if (check.nonfinite_is_error) {
    keep_failure(check, Code::non_finite, rank, FailedField::gradient);
  }
}

__global__ void __launch_bounds__(WordsPolicy::threads, WordsPolicy::min_blocks)
    open_letter_kernel(LetterCheck const check, PayloadHeader const* payload) {
  PayloadHeader const header = *payload;
  PayloadHeader const& expected = check.expected;
  auto const rank = static_cast<std::int32_t>(expected.rank);
  constexpr unsigned kKnownFlags = kFlagNonFinite | kFlagOverflow;
  if (header.magic != PayloadHeader::kMagic || header.version != PayloadHeader::kVersion ||
      header.codec != expected.codec || (header.flags & ~kKnownFlags) != 0 ||
      header.checksum != 0) {
    return keep_failure(check, Code::corrupt_payload, rank, FailedField::header);
  }
  if (header.plan_hash != (expected.plan_hash ^ check.step->history)) {
    return keep_failure(check, Code::mismatch, rank, FailedField::plan_hash);
  }
  if (header.step != check.step->step) {
    return keep_failure(check, Code::mismatch, rank, FailedField::step);
  }
  if (header.rank != expected.rank) {
    return keep_failure(check, Code::corrupt_payload, rank, FailedField::rank);
  }
  if (header.round != expected.round || header.sequence != expected.sequence) {
    return keep_failure(check, Code::mismatch, rank, FailedField::round);
  }
  if (header.status != 0) {
    return keep_failure(check, Code::peer_failed, rank, FailedField::status);
  }
  if (header.num_elements != expected.num_elements || header.num_pieces != expected.num_pieces ||
      header.body_bytes != expected.body_bytes) {
    return keep_failure(check, Code::mismatch, rank, FailedField::num_elements);
  }
  if ((header.flags & kFlagNonFinite) != 0) keep_nonfinite(check, rank);
}

__global__ void __launch_bounds__(WordsPolicy::threads, WordsPolicy::min_blocks)
    write_lanes_kernel(bool failed, float rank, DeviceStep const* step, DeviceParcel* parcel,
                       std::uint32_t reached, float* lanes) {
  bool const has_failed = failed || (parcel->words.flags & kStepCorrupt) != 0;
  bool const nonfinite = (parcel->words.flags & kStepNonFinite) != 0;
  lanes[0] = has_failed ? 1.0F : 0.0F;
  lanes[1] = has_failed ? rank : 0.0F;
  lanes[2] = nonfinite ? 1.0F : 0.0F;
  lanes[3] = nonfinite ? rank : 0.0F;
  lanes[4] = static_cast<float>(step->history & 0xfff);
  if (!failed) parcel->reached = reached;
}

/// The only rank that a pair of lanes speaks of, or −1: a sum of several numbers is none of them.
__device__ std::int32_t only_rank(float number, float ranks, int world_size) {
  bool const is_rank = ranks >= 0.0F && ranks < static_cast<float>(world_size);
  return number == 1.0F && is_rank ? static_cast<std::int32_t>(ranks) : -1;
}

__global__ void __launch_bounds__(WordsPolicy::threads, WordsPolicy::min_blocks)
    read_lanes_kernel(LetterCheck const check, int world_size, float const* lanes) {
  if (lanes[0] != 0.0F) {
    return keep_failure(check, Code::peer_failed, only_rank(lanes[0], lanes[1], world_size),
                        FailedField::status);
  }
  if (lanes[2] != 0.0F) keep_nonfinite(check, only_rank(lanes[2], lanes[3], world_size));
  float const agreed =
      static_cast<float>(check.step->history & 0xfff) * static_cast<float>(world_size);
  if (lanes[4] != agreed) keep_failure(check, Code::mismatch, -1, FailedField::history);
}

template <typename T>
struct FillIf : cuda::OnlyIf {
  T* values;
  T value;

  struct Nothing {};
  template <int kWidth>
  __device__ Nothing load(std::uint64_t) const {
    return {};
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t i, Nothing const&, bool&) const {
    cuda::Pack<T, kWidth> pack;
    for (int lane = 0; lane < kWidth; ++lane) pack.at[lane] = value;
    cuda::store<kWidth>(values + i, pack);
  }
};

struct CopyIf : cuda::OnlyIf {
  float const* from;
  float* to;

  template <int kWidth>
  __device__ cuda::Pack<float, kWidth> load(std::uint64_t i) const {
    return cuda::load<kWidth>(from + i);
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t i, cuda::Pack<float, kWidth> const& x, bool&) const {
    cuda::store<kWidth>(to + i, x);
  }
};

__global__ void __launch_bounds__(ParcelsPolicy::threads, ParcelsPolicy::min_blocks)
    cast_vote_kernel(bool host_is_well, DeviceStep* step, DeviceParcel const* parcels,
                     std::uint64_t count) {
  __shared__ unsigned first_corrupt;
  if (threadIdx.x == 0) first_corrupt = 0xffffffffU;
  __syncthreads();
  bool found = false;
  for (std::uint64_t i = threadIdx.x; i < count; i += ParcelsPolicy::threads) {
    found = found || parcels[i].found_nonfinite != 0;
    if ((parcels[i].words.flags & kStepCorrupt) != 0) {
      atomicMin(&first_corrupt, static_cast<unsigned>(i));
    }
  }
  found = __syncthreads_or(found ? 1 : 0) != 0;
  if (threadIdx.x != 0) return;
  step->found_nonfinite = found ? 1 : 0;
  if (first_corrupt != 0xffffffffU && step->failure.code == 0) {
    step->failure = {static_cast<std::uint32_t>(Code::corrupt_payload), -1, first_corrupt,
                     FailedField::body};
  }
  step->vote = host_is_well && !found && step->failure.code == 0 ? step->step + 1 : 0;
}

__device__ void end_step(DeviceStep* step, DeviceOutcome outcome) {
  step->outcome = outcome;
  step->committed = outcome == DeviceOutcome::committed ? 1 : 0;
  if (outcome == DeviceOutcome::committed) {
    step->committed_attempt_before = step->committed_attempt;
    step->committed_attempt = step->attempt;
  }
  step->history = mix64(step->history ^ mix64(4 * step->step + static_cast<unsigned>(outcome)));
}

__global__ void __launch_bounds__(WordsPolicy::threads, WordsPolicy::min_blocks)
    tally_kernel(DeviceStep* step) {
  bool const all = step->least == step->step + 1;
  end_step(step, all ? DeviceOutcome::committed : DeviceOutcome::rolled_back);
}

__global__ void __launch_bounds__(WordsPolicy::threads, WordsPolicy::min_blocks)
    set_outcome_kernel(DeviceOutcome outcome, DeviceStep* step) {
  end_step(step, outcome);
}

__global__ void __launch_bounds__(WordsPolicy::threads, WordsPolicy::min_blocks)
    refuse_step_kernel(DeviceStep* step) {
  if (step->outcome != DeviceOutcome::committed) return;
  step->committed_attempt = step->committed_attempt_before;
  end_step(step, DeviceOutcome::rolled_back);
}

}  // namespace

void set_step(ExecContext const& ctx, std::uint64_t step, std::uint64_t attempt, float loss_scale,
              DeviceStep* device_step) noexcept {
  launch(ctx, 1, WordsPolicy::threads, 0, set_step_kernel, step, attempt, loss_scale, device_step);
}

void set_words(ExecContext const& ctx, std::span<std::uint64_t const> values,
               std::uint64_t* words) noexcept {
  for (std::size_t begin = 0; begin < values.size(); begin += kWordsPerLaunch) {
    WordBlock block = {};
    std::size_t const count = std::min<std::size_t>(kWordsPerLaunch, values.size() - begin);
    std::copy_n(values.data() + begin, count, block.words);
    launch(ctx, 1, kWordsPerLaunch, 0, set_words_kernel, block, static_cast<unsigned>(count),
           words + begin);
  }
}

void resolve_outcome(ExecContext const& ctx, DeviceStep const* step,
                     std::span<DeviceParcel> parcels) noexcept {
  launch(ctx, 1, ParcelsPolicy::threads, 0, resolve_outcome_kernel, step, parcels.data(),
         std::uint64_t{parcels.size()});
}

void begin_step(ExecContext const& ctx, DeviceStep* step, std::span<DeviceParcel> parcels,
                bool keeps_on_rollback, PieceWords const& words,
                std::span<std::uint32_t> bucket_nonfinite) noexcept {
  launch(ctx, 1, ParcelsPolicy::threads, 0, begin_step_kernel, step, parcels.data(),
         std::uint64_t{parcels.size()}, keeps_on_rollback, words, bucket_nonfinite.data(),
         std::uint64_t{bucket_nonfinite.size()});
}

void seal_letter(ExecContext const& ctx, PayloadHeader const& header, std::uint64_t body_bytes,
                 DeviceStep const* step, DeviceParcel* parcel, std::uint32_t reached,
                 std::byte* payload) noexcept {
  launch(ctx, 1, HeaderPolicy::threads, 0, seal_letter_kernel, header, body_bytes, step, parcel,
         reached, payload);
}

void open_letter(ExecContext const& ctx, LetterCheck const& check,
                 std::byte const* payload) noexcept {
  launch(ctx, 1, WordsPolicy::threads, 0, open_letter_kernel, check,
         reinterpret_cast<PayloadHeader const*>(payload));
}

void write_lanes(ExecContext const& ctx, bool failed, DeviceStep const* step, DeviceParcel* parcel,
                 std::uint32_t reached, float* lanes) noexcept {
  launch(ctx, 1, WordsPolicy::threads, 0, write_lanes_kernel, failed, static_cast<float>(ctx.rank),
         step, parcel, reached, lanes);
}

void read_lanes(ExecContext const& ctx, LetterCheck const& check, float const* lanes) noexcept {
  launch(ctx, 1, WordsPolicy::threads, 0, read_lanes_kernel, check, ctx.world_size, lanes);
}

void fill_if(ExecContext const& ctx, std::uint32_t const* word, bool with_nan,
             TensorView values) noexcept {
  if (size_of(values.dtype) == sizeof(float)) {
    float* const data = static_cast<float*>(values.data);
    float const value = with_nan ? std::bit_cast<float>(0x7fc00000U) : 0.0F;
    cuda::stream<FillPolicy>(ctx, FillIf<float>{{word}, data, value}, values.num_elements,
                             cuda::common_head(data));
    return;
  }
  BFloat16* const data = static_cast<BFloat16*>(values.data);
  std::uint16_t const nan = values.dtype == DType::f16 ? 0x7e00 : 0x7fc0;
  cuda::stream<FillPolicy>(ctx, FillIf<BFloat16>{{word}, data, {with_nan ? nan : std::uint16_t{0}}},
                           values.num_elements, cuda::common_head(data));
}

void copy_if(ExecContext const& ctx, std::uint32_t const* word, std::span<std::byte const> from,
             std::span<std::byte> to) noexcept {
  auto const* const source = reinterpret_cast<float const*>(from.data());
  auto* const target = reinterpret_cast<float*>(to.data());
  cuda::stream<FillPolicy>(ctx, CopyIf{{word}, source, target}, from.size() / sizeof(float),
                           cuda::common_head(source, target));
}

void cast_vote(ExecContext const& ctx, bool host_is_well, DeviceStep* step,
               std::span<DeviceParcel const> parcels) noexcept {
  launch(ctx, 1, ParcelsPolicy::threads, 0, cast_vote_kernel, host_is_well, step, parcels.data(),
         std::uint64_t{parcels.size()});
}

void tally(ExecContext const& ctx, DeviceStep* step) noexcept {
  launch(ctx, 1, WordsPolicy::threads, 0, tally_kernel, step);
}

void set_outcome(ExecContext const& ctx, DeviceOutcome outcome, DeviceStep* step) noexcept {
  launch(ctx, 1, WordsPolicy::threads, 0, set_outcome_kernel, outcome, step);
}

void refuse_step(ExecContext const& ctx, DeviceStep* step) noexcept {
  launch(ctx, 1, WordsPolicy::threads, 0, refuse_step_kernel, step);
}

}  // namespace gradsieve::kernels
