// SPDX-License-Identifier: Apache-2.0
// The hook's plan, in its own words. A bucket is cut into parcels: what one chain encodes and one
// exchange carries. A parcel has lanes (what is encoded together: a tensor, or several under
// scope=bucket) and, for each round, letters (one payload each) made of pieces of lanes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradsieve/compressor.hpp"
#include "gradsieve/hook.hpp"
#include "gradsieve/registry.hpp"

#include "comm/stopwatch.hpp"

namespace gradsieve {

/// A tensor's place in the model, a bucket and a lane.
struct PlannedTensor {
  TensorDesc desc;
  std::uint64_t bucket_offset = 0;  ///< elements
  std::uint64_t parcel_offset = 0;  ///< elements, in the parcel's residual
  std::uint32_t bucket = 0;
  std::uint32_t parcel = 0;
};

/// Two copies of a declared slot and the flag that says whether this step wrote the second.
struct SlotState {
  std::string name;
  SlotKind kind = SlotKind::replicated;
  Buffer committed;
  Buffer next;
  std::unique_ptr<bool> written = std::make_unique<bool>(false);
};

struct Lane {
  TensorInfo info;
  std::uint64_t bucket_offset = 0;
  std::uint64_t parcel_offset = 0;
  std::vector<SlotState> slots;
  std::vector<SlotView> slot_views;  ///< into slots

  [[nodiscard]] StateView state() const noexcept { return {slot_views}; }
};

/// How far a parcel, or a piece of it, has come in this step: what a rollback has to undo.
enum class Reached : std::uint8_t { idle, compensated, encoded };

/// A cut of a lane: all of it, or what one owner of a shard_sum holds.
struct Piece {
  TensorInfo info;
  std::uint64_t bucket_offset = 0;
  std::uint64_t parcel_offset = 0;
  Reached reached = Reached::idle;
  ConstBytes body;  ///< what the last encode wrote, if it came that far
  std::uint32_t lane = 0;
  std::size_t capacity_bytes = 0;
  std::size_t body_offset = 0;   ///< in its letter, where those are laid out by capacity
  std::uint32_t word = 0;        ///< index of its step word
  bool is_batched = false;       ///< one of its letter's batch
  std::uint64_t body_bytes = 0;  ///< of the last encode, like the next two for statistics
  std::uint64_t kept_elements = 0;
  std::uint64_t overflowed_elements = 0;
};

[[nodiscard]] inline Piece whole(Lane const& lane) noexcept {
  Piece piece;
  piece.info = lane.info;
  piece.bucket_offset = lane.bucket_offset;
  piece.parcel_offset = lane.parcel_offset;
  return piece;
}

/// Calls visit(Piece) for what parts (lanes or pieces) that follow each other in the bucket and in
/// the parcel make up together: work on elements need not know where a tensor ends. Parts that
/// takes(part) does not want are left out.
template <typename Parts, typename Visit, typename Takes>
void for_each_stretch(Parts const& parts, Visit const& visit, Takes const& takes) {
  Piece stretch;
  std::uint64_t& count = stretch.info.num_elements;
  for (auto const& part : parts) {
    if (part.info.num_elements == 0 || !takes(part)) continue;
    if (part.bucket_offset != stretch.bucket_offset + count ||
        part.parcel_offset != stretch.parcel_offset + count) {
      if (count != 0) visit(stretch);
      count = 0;
    }
    if (count == 0) {
      stretch.bucket_offset = part.bucket_offset;
      stretch.parcel_offset = part.parcel_offset;
    }
    count += part.info.num_elements;
  }
  if (count != 0) visit(stretch);
}
template <typename Parts, typename Visit>
void for_each_stretch(Parts const& parts, Visit const& visit) {
  for_each_stretch(parts, visit, [](auto const&) { return true; });
}

/// In the header's `round`: a shard_sum's second payload.
inline constexpr std::uint16_t kOwnedRound = 0x8000;

/// One payload: header, piece table, bodies. In a sum round: the bare array and its status lanes.
struct Letter {
  std::vector<Piece> pieces;
  std::uint64_t num_elements = 0;
  Bytes storage;
  std::size_t length = 0;         ///< bytes of storage in use
  std::uint64_t fixed_bytes = 0;  ///< behind the header, where it is laid out by capacity
  /// The batched pieces at once, on a device; null: there are none. Of a shard_sum's second payload
  /// with places in the shard, not in the bucket.
  std::shared_ptr<Batch const> batch;

  [[nodiscard]] ConstBytes bytes() const noexcept { return storage.first(length); }
};

struct Round {
  ExchangeKind exchange = ExchangeKind::gather;
  DType sum_dtype = DType::f32;
  std::size_t capacity_bytes = 0;  ///< of any letter of any rank
  std::uint32_t sequence = 0;      ///< of its (first) exchange within the step
  std::vector<Letter> letters;     ///< one, or one per owner in a shard_sum
  Letter owned;                    ///< a shard_sum's second payload
  Bytes sum;     ///< result of a sum round; f32 sum of the own shard in a shard_sum
  Bytes agreed;  ///< a round that is absorbed: copies of all ranks' payloads
};

struct Parcel {
  std::uint32_t index = 0;
  std::uint32_t bucket = 0;
  std::shared_ptr<Chain const> chain;
  DType dtype = DType::f32;
  ExchangeKind exchange = ExchangeKind::gather;  ///< of the last round
  std::string stand_aside;                       ///< why it runs dense, if it does
  std::uint64_t num_elements = 0;
  std::uint64_t plan_hash = 0;
  std::vector<Lane> lanes;
  std::vector<Round> rounds;
  std::vector<Buffer> memory;  ///< what the views of this parcel point into

  // The residual. `current` is the committed copy; with rollback=merge it is the only one. bf16
  // residuals and parcels without feedback work on `scratch`.
  bool with_residual = false;
  DType residual_dtype = DType::f32;
  Buffer current;
  Buffer next;
  std::span<float> scratch;
  float residual_scale = 1.0F;   ///< loss scale that the committed residual was made at
  std::span<float> undelivered;  ///< MassSink's log: the own shard, in units of the sum
  std::span<float> widened;      ///< f32 accumulator of f16 and bf16 parcels

  // The running step.
  StepWords words;
  TensorView gradient;
  Reached reached = Reached::idle;
  Status status;
  bool submitted = false;
  bool undelivered_written = false;
  bool done = true;
  bool found_nonfinite = false;
  int nonfinite_rank = -1;  ///< the first rank whose header said so
  Spent encode_spent;
  Spent decode_spent;
  double exchange_seconds = 0.0;
  std::uint64_t wire_bytes = 0;
  std::uint64_t total_wire_bytes = 0;
  Spent total_encode_spent;
  Spent total_decode_spent;
  double total_exchange_seconds = 0.0;

  [[nodiscard]] Compressor const& compressor() const noexcept { return *chain->compressor; }
  [[nodiscard]] int last_round() const noexcept { return static_cast<int>(rounds.size()) - 1; }
};

/// Status lanes behind the array of a sum round, added like everything else: agreement without a
/// header. A sum of rank numbers is the number itself if only one rank has something to say.
enum StatusLane : std::size_t {
  kLaneFailed,          ///< ranks that failed
  kLaneFailedRanks,     ///< sum of their numbers
  kLaneNonFinite,       ///< ranks that saw a non-finite element
  kLaneNonFiniteRanks,  ///< sum of their numbers
  kLaneHistory,         ///< low bits of the agreed history: world_size times this rank's own
  kNumLanes,
};

}  // namespace gradsieve
