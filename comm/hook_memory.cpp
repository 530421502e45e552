// SPDX-License-Identifier: Apache-2.0
// Everything that a step will need, taken once: after plan() the hook allocates nothing.
#include <algorithm>

#include "comm/hook_impl.hpp"

namespace gradsieve {

void Hook::Impl::allocate(Parcel& parcel) {
  auto const take = [&](std::size_t num_bytes) -> Bytes {
    if (num_bytes == 0) return {};
    parcel.memory.emplace_back(num_bytes, *memory, stream());
    return parcel.memory.back().bytes().first(num_bytes);
  };
  auto const take_floats = [&](std::uint64_t count) -> std::span<float> {
    Bytes const bytes = take(static_cast<std::size_t>(count) * sizeof(float));
    return {reinterpret_cast<float*>(bytes.data()), static_cast<std::size_t>(count)};
  };
  FeedbackOptions const& feedback = parcel.chain->feedback;
  parcel.with_residual =
      feedback.enabled && !parcel.compressor().claims().lossless && parcel.dtype != DType::f64;
  parcel.residual_dtype = parcel.with_residual ? feedback.dtype : DType::f32;
  if (parcel.with_residual) {
    std::size_t const num_bytes =
        static_cast<std::size_t>(parcel.num_elements) * size_of(parcel.residual_dtype);
    parcel.current = Buffer(num_bytes, *memory, stream());
    if (options.rollback == Rollback::exact) parcel.next = Buffer(num_bytes, *memory, stream());
  }
  bool const needs_scratch = !parcel.with_residual || parcel.residual_dtype != DType::f32;
  if (needs_scratch && parcel.dtype != DType::f64)
    parcel.scratch = take_floats(parcel.num_elements);
  if (size_of(parcel.dtype) == 2) parcel.widened = take_floats(parcel.num_elements);

  for (Round& round : parcel.rounds) {
    // One behind another: a device sends them in one call.
    Bytes const letters = take(round.capacity_bytes * round.letters.size());
    for (std::size_t q = 0; q < round.letters.size(); ++q)
      round.letters[q].storage = letters.subspan(q * round.capacity_bytes, round.capacity_bytes);
    if (round.exchange == ExchangeKind::sum) round.sum = take(round.capacity_bytes);
    if (round.exchange == ExchangeKind::shard_sum) {
      std::uint64_t const shard = round.owned.num_elements;
      round.owned.storage = take(round.capacity_bytes);
      round.sum = take(static_cast<std::size_t>(shard) * sizeof(float));
      parcel.undelivered = take_floats(shard);
    }
    if (round.exchange == ExchangeKind::gather && &round != &parcel.rounds.back()) {
      round.agreed = take(round.capacity_bytes * static_cast<std::size_t>(transport->world_size()));
    }
  }
  for (Lane& lane : parcel.lanes) {
    for (SlotInfo const& slot : parcel.compressor().slots(lane.info)) {
      std::size_t const num_bytes = static_cast<std::size_t>(slot.num_bytes);
      lane.slots.push_back({std::string(slot.name), slot.kind, Buffer(num_bytes, *memory),
                            Buffer(num_bytes, *memory), std::make_unique<bool>(false)});
    }
    for (SlotState& slot : lane.slots) {
      lane.slot_views.push_back({{slot.name, slot.kind, slot.committed.num_bytes()},
                                 slot.committed.bytes(),
                                 slot.next.bytes(),
                                 slot.written.get()});
    }
  }
}

void Hook::Impl::allocate_shared() {
  std::size_t work_bytes = 0;
  std::size_t scratch_bytes = 0;
  int const world_size = transport->world_size();
  for (Parcel const& parcel : parcels) {
    for (Round const& round : parcel.rounds) {
      for (Letter const& letter : round.letters) {
        for (Piece const& piece : letter.pieces) {
          work_bytes = std::max(work_bytes, parcel.compressor().workspace_bytes(piece.info));
        }
      }
      std::size_t needed = exchange::all_gather_scratch_bytes(world_size, round.capacity_bytes);
      if (round.exchange == ExchangeKind::shard_sum) {
        needed =
            std::max(needed, exchange::all_to_all_scratch_bytes(world_size, round.capacity_bytes));
      } else if (round.exchange == ExchangeKind::sum) {
        needed = exchange::all_reduce_scratch_bytes(
            world_size, round.capacity_bytes / size_of(round.sum_dtype), round.sum_dtype);
      }
      scratch_bytes = std::max(scratch_bytes, needed);
    }
  }
  work_bytes += 4 * Workspace::kAlignment;
  encode_memory = Buffer(work_bytes, *memory, stream());
  decode_memory = Buffer(work_bytes, *memory, stream());
  exchange_memory =
      Buffer(std::max<std::size_t>(scratch_bytes, 1), device ? host_memory() : *memory);
  encode_workspace = Workspace(encode_memory.bytes());
  decode_workspace = Workspace(decode_memory.bytes());

  if (device) allocate_on_device();
  bool const waits = !device || !on_device.exchange->is_asynchronous();
  bool const own_thread = waits && options.progress_thread && transport->traits().any_thread &&
                          transport->world_size() > 1;
  progress = std::make_unique<Progress>(
      own_thread, static_cast<std::uint32_t>(parcels.size()),
      [](void* self, std::uint32_t task) {
        Impl& impl = *static_cast<Impl*>(self);
        impl.complete(impl.parcels[task]);
      },
      this);
}

}  // namespace gradsieve
