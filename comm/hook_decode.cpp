// SPDX-License-Identifier: Apache-2.0
// Decoding of letters and what the bucket holds in the end: helpers of the straight line in
// hook.cpp.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "comm/hook_impl.hpp"
#include "comm/stopwatch.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {
namespace {

template <typename T>
void fill_with(T value, TensorView target) noexcept {
  std::ranges::fill(target.as<T>(), value);
}

void fill_with_nan(TensorView target) noexcept {
  switch (target.dtype) {
    case DType::f32:
      return fill_with(std::bit_cast<float>(0x7fc00000U), target);
    case DType::f16:
      return fill_with(Float16{0x7e00}, target);
    case DType::bf16:
      return fill_with(BFloat16{0x7fc0}, target);
    case DType::f64:
      return fill_with(std::numeric_limits<double>::quiet_NaN(), target);
  }
}

}  // namespace

// A payload of a peer is believed only as far as the plan agrees with it.
Status Hook::Impl::open(Parcel& parcel, int round, bool owned, int sender, ConstBytes payload,
                        Letter const& letter, PayloadHeader& header) noexcept {
  Round const& r = parcel.rounds[static_cast<std::size_t>(round)];
  auto const reject = [&](Status status, char const* field) {
    blame(parcel, status, sender, field);
    return status;
  };
  if (Status const status = wire::read_header(payload, header); !status.ok())
    return reject(status, "header");
  if (header.plan_hash != (parcel.plan_hash ^ history)) {
    return reject(
        {Code::mismatch, "a payload of another plan, or of a rank that refused another step"},
        "plan_hash");
  }
  if (header.step != step) return reject({Code::mismatch, "a payload of another step"}, "step");
  if (header.rank != static_cast<std::uint32_t>(sender)) {
    return reject({Code::corrupt_payload, "a payload with another sender's rank"}, "rank");
  }
  std::uint16_t const expected_round =
      static_cast<std::uint16_t>(round | (owned ? kOwnedRound : 0));
  if (header.round != expected_round || header.sequence != r.sequence + (owned ? 1u : 0u)) {
    return reject({Code::mismatch, "a payload of another round"}, "round");
  }
  if (header.status != 0)
    return reject({Code::peer_failed, "a rank reports that it failed"}, "status");
  if (header.num_elements != letter.num_elements || header.num_pieces != letter.pieces.size()) {
    return reject({Code::mismatch, "a payload for another number of elements"}, "num_elements");
  }
  if ((header.flags & kFlagNonFinite) != 0) {
    parcel.found_nonfinite = true;
    if (parcel.nonfinite_rank < 0) parcel.nonfinite_rank = sender;
  }
  return {};
}

Status Hook::Impl::decode_letter(Parcel& parcel, int round, Letter const& letter, bool owned,
                                 int sender, ConstBytes payload, double factor,
                                 bool into_shard) noexcept {
  Stopwatch const watch(parcel.decode_spent);
  TraceRange range(observer.get(), "decode", parcel.bucket);
  range.set_bytes(payload.size());
  PayloadHeader header;
  GRADSIEVE_RETURN_IF_ERROR(open(parcel, round, owned, sender, payload, letter, header));
  Round const& r = parcel.rounds[static_cast<std::size_t>(round)];
  std::span<float> shard{reinterpret_cast<float*>(r.sum.data()), r.sum.size() / sizeof(float)};
  wire::PieceReader reader(payload, header);
  Status status;
  for (Piece const& piece : letter.pieces) {
    ConstBytes body;
    if (status = reader.next(body); !status.ok()) break;
    std::size_t const count = static_cast<std::size_t>(piece.info.num_elements);
    TensorView const target =
        into_shard ? TensorView(shard.first(count)) : accumulator(parcel, piece);
    if (into_shard) shard = shard.subspan(count);
    ExecContext const ctx = context(parcel, decode_workspace, decode_threads);
    status = parcel.compressor().decode_add(ctx, round, piece.info, body, factor,
                                            parcel.lanes[piece.lane].state(), target);
    if (!status.ok()) break;
  }
  if (status.ok()) status = reader.finish();
  if (!status.ok()) blame(parcel, status, sender, "body");
  return status;
}

// What the bucket holds in the end, in its own type.
Status Hook::Impl::deliver(Parcel& parcel) noexcept {
  Stopwatch const watch(parcel.decode_spent);
  ExecContext const ctx = context(parcel, decode_workspace, decode_threads);
  if (parcel.found_nonfinite && options.on_nonfinite == OnNonFinite::error) {
    Status const status{Code::non_finite, "a gradient element of some rank is NaN or infinite"};
    blame(parcel, status, parcel.nonfinite_rank, "gradient");
    return status;
  }
  if (!parcel.widened.empty()) {
    for_each_stretch(parcel.lanes, [&](Piece const& stretch) {
      kernels::narrow(ctx, accumulator(parcel, stretch).as<float>(), false,
                      parcel.gradient.slice(stretch.bucket_offset, stretch.info.num_elements));
    });
  }
  if (parcel.index == bucket_parcels[parcel.bucket].back()) fill_if_nonfinite(parcel);
  return {};
}

// The parcels of a bucket are delivered one after another; the last one knows of all of them. A
// loss scaler looks at whole buckets: what one parcel saw makes all of them NaN (or zero).
void Hook::Impl::fill_if_nonfinite(Parcel& last) noexcept {
  if (device) {
    kernels::fill_if(context(last, decode_workspace, decode_threads),
                     on_device.bucket_nonfinite.as<std::uint32_t>().data() + last.bucket,
                     options.on_nonfinite == OnNonFinite::propagate, last.gradient);
    return;
  }
  bool const found = std::ranges::any_of(bucket_parcels[last.bucket], [&](std::uint32_t index) {
    return parcels[index].found_nonfinite;
  });
  if (!found) return;
  if (options.on_nonfinite == OnNonFinite::propagate) return fill_with_nan(last.gradient);
  std::memset(last.gradient.data, 0, static_cast<std::size_t>(last.gradient.num_bytes()));
}

}  // namespace gradsieve
