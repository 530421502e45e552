// SPDX-License-Identifier: Apache-2.0
// What a hook on a device takes at plan time, and what goes between host and device outside of a
// step: the state of a plan, residuals, copies for reports.
#include <algorithm>
#include <new>
#include <utility>

#include "comm/hook_impl.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {

HookDevice::HookDevice(Stream callers)
    : caller(callers),
      work(callers),
      step_memory(sizeof(kernels::DeviceStep), device_memory(), work.get()) {}

void Hook::Impl::check_device_options() const {
  if (options.memory != nullptr && options.memory->device() != Device::cuda) {
    throw Error(Code::invalid_argument,
                "HookOptions::memory is host memory; backend=cuda takes null or a resource whose "
                "device() is cuda");
  }
}

Stream Hook::Impl::stream() const noexcept { return device ? device->work.get() : Stream{}; }

kernels::DeviceParcel* Hook::Impl::device_parcel(Parcel const& parcel) const noexcept {
  return on_device.parcels.as<kernels::DeviceParcel>().data() + parcel.index;
}

/// Of work that belongs to no parcel.
ExecContext Hook::Impl::device_context() noexcept {
  ExecContext ctx;
  ctx.backend = Backend::cuda;
  ctx.stream = stream();
  ctx.device_error = &device->callers_error;
  ctx.rank = transport->rank();
  ctx.world_size = transport->world_size();
  return ctx;
}

void Hook::Impl::allocate_on_device() {
  std::size_t const world_size = static_cast<std::size_t>(transport->world_size());
  std::size_t const parcel_bytes = parcels.size() * sizeof(kernels::DeviceParcel);
  on_device.parcels = Buffer(parcel_bytes, *memory, stream());
  on_device.piece_words =
      Buffer(on_device.piece_values.size() * sizeof(std::uint64_t), *memory, stream());
  on_device.next_words = Buffer(on_device.piece_words.num_bytes(), *memory, stream());
  on_device.bucket_nonfinite = Buffer(buckets.size() * sizeof(std::uint32_t), *memory, stream());
  on_device.bucket_done = std::vector<StreamEvent>(buckets.size());
  on_device.read_back = Buffer(sizeof(kernels::DeviceStep) + parcel_bytes, pinned_memory());

  std::size_t most_bytes = 0;
  for (Parcel const& parcel : parcels) {
    for (Round const& round : parcel.rounds)
      most_bytes = std::max(most_bytes, world_size * round.capacity_bytes);
  }
  on_device.received = Buffer(most_bytes, *memory, stream());
  on_device.exchange = transport->device_exchange();
  on_device.staged.reset();
  if (on_device.exchange == nullptr) {
    on_device.staged = std::make_unique<StagedExchange>(data, most_bytes);
    on_device.exchange = on_device.staged.get();
  }

  for (Parcel& parcel : parcels) make_batches(parcel);

  // The lengths of the bodies never change, so the tables of letters with several are written now.
  std::vector<std::uint64_t> table;
  auto const write_table = [&](Letter const& letter) {
    if (letter.pieces.size() < 2) return;
    table.clear();
    for (Piece const& piece : letter.pieces) table.push_back(piece.capacity_bytes);
    Status status = copy_in_order(stream(), table.data(),
                                  letter.storage.data() + wire::kHeaderBytes, table.size() * 8);
    if (status.ok()) status = gradsieve::synchronize(stream());
    if (!status.ok()) throw Error(status.code(), status.message());
  };
  for (Parcel const& parcel : parcels) {
    for (Round const& round : parcel.rounds) {
      if (round.exchange == ExchangeKind::sum) continue;
      std::ranges::for_each(round.letters, write_table);
      if (round.exchange == ExchangeKind::shard_sum) write_table(round.owned);
    }
  }
}

/// What the codec takes of a letter at once. The pieces of a shard_sum are batched all or none.
void Hook::Impl::make_batches(Parcel& parcel) {
  Compressor const& compressor = parcel.compressor();
  if (compressor.num_rounds() != 1) return;
  ExecContext ctx = context(parcel, decode_workspace, decode_threads);
  Round& round = parcel.rounds.back();
  bool const is_shard_sum = round.exchange == ExchangeKind::shard_sum;
  std::vector<BatchPiece> places;
  auto const make = [&](Letter& letter, auto const& place_of) {
    places.clear();
    for (Piece& piece : letter.pieces) {
      BatchPiece const place = place_of(piece);
      piece.is_batched = compressor.is_batched(piece.info);
      if (piece.is_batched) places.push_back(place);
    }
    // A single piece has kernels of its own.
    bool const is_whole = places.size() == letter.pieces.size();
    if (places.size() > 1 && (is_whole || !is_shard_sum))
      letter.batch = compressor.make_batch(ctx, places, *memory);
    if (letter.batch != nullptr) return;
    for (Piece& piece : letter.pieces) piece.is_batched = false;
  };
  for (Letter& letter : round.letters) {
    make(letter, [](Piece const& piece) {
      return BatchPiece{piece.info, piece.bucket_offset, piece.parcel_offset, piece.body_offset,
                        piece.word};
    });
  }
  if (!is_shard_sum) return;
  ctx.owned = true;
  std::uint64_t in_shard = 0;
  make(round.owned, [&](Piece const& piece) {
    std::uint64_t const begin = std::exchange(in_shard, in_shard + piece.info.num_elements);
    return BatchPiece{piece.info, begin, begin, piece.body_offset, piece.word};
  });
}

/// What the host knows between two steps, for the first step that comes.
void Hook::Impl::upload_device_state() noexcept {
  auto* const step_copy = new (on_device.read_back.data()) kernels::DeviceStep;
  step_copy->history = history;
  step_copy->step = step;
  step_copy->attempt = attempt;
  step_copy->committed_attempt = committed_attempt;
  step_copy->committed_attempt_before = committed_attempt_before;
  step_copy->committed = counts ? 1 : 0;
  auto* const copies = reinterpret_cast<kernels::DeviceParcel*>(step_copy + 1);
  for (Parcel const& parcel : parcels) {
    auto* const copy = new (copies + parcel.index) kernels::DeviceParcel;
    copy->decay = static_cast<float>(parcel.chain->feedback.decay);
    copy->residual_scale = parcel.residual_scale;
  }
  Status status = copy_in_order(stream(), step_copy, device->step(), sizeof *step_copy);
  if (status.ok()) {
    status =
        copy_in_order(stream(), copies, on_device.parcels.data(), on_device.parcels.num_bytes());
  }
  if (status.ok()) status = gradsieve::synchronize(stream());
  if (!status.ok() && device->callers_error.ok()) device->callers_error = status;
  device->is_unread = false;
}

/// As resolve(), between two steps and into host memory: the state stays as it is.
void Hook::Impl::resolve_on_device(Parcel& parcel, std::span<float> target) {
  kernels::DeviceParcel* const words = device_parcel(parcel);
  Buffer const copy(target.size_bytes(), *memory, stream());
  std::span<float> const values = copy.as<float>().first(target.size());
  ExecContext const ctx = context(parcel, decode_workspace, decode_threads);
  kernels::copy(ctx, parcel.current.bytes(), copy.bytes());
  kernels::resolve_outcome(ctx, device->step(), on_device.parcels.as<kernels::DeviceParcel>());
  if (options.rollback == Rollback::exact) {
    kernels::copy_if(ctx, &words->keeps, parcel.next.bytes(), copy.bytes());
  } else {
    give_back(parcel, values, &words->gives_back);
  }
  add_undelivered(parcel, values, &words->keeps);
  Status status = device->error();
  if (status.ok())
    status = copy_in_order(stream(), copy.data(), target.data(), target.size_bytes());
  if (status.ok()) status = gradsieve::synchronize(stream());
  if (!status.ok()) throw Error(status.code(), status.message());
}

/// A copy in host memory of what lies where the hook works: for reports, between two steps.
std::vector<float> Hook::Impl::fetched(std::span<float const> values) const {
  if (!device) return {values.begin(), values.end()};
  std::vector<float> copy(values.size());
  Status status = copy_in_order(stream(), values.data(), copy.data(), values.size_bytes());
  if (status.ok()) status = gradsieve::synchronize(stream());
  if (!status.ok()) throw Error(status.code(), status.message());
  return copy;
}

}  // namespace gradsieve
