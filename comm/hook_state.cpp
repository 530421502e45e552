// SPDX-License-Identifier: Apache-2.0
// What tensors remember: kept over bucket rebuilds, written to files, spread over another number of
// ranks.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "comm/hook_impl.hpp"
#include "comm/state_file.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {

std::unordered_map<std::string, Memento> Hook::Impl::remember() {
  std::unordered_map<std::string, Memento> mementos = shelf;
  for (Parcel& parcel : parcels) {
    bool const pending = outcome == Outcome::committed || outcome == Outcome::rolled_back;
    Outcome const what = pending ? outcome : Outcome::none;
    std::vector<float> residual;
    if (parcel.with_residual) {
      residual.resize(static_cast<std::size_t>(parcel.num_elements));
      device ? resolve_on_device(parcel, residual) : resolve(parcel, what, residual);
    }
    std::vector<bool> told(parcel.lanes.size(), false);
    for (PlannedTensor const& tensor : tensors) {
      if (tensor.parcel != parcel.index) continue;
      Memento memento;
      // What rules without feedback do not send stays on the shelf until others come.
      if (auto const kept = mementos.find(tensor.desc.name); kept != mementos.end())
        memento = {std::move(kept->second.residual), kept->second.residual_scale, {}};
      if (parcel.with_residual) {
        memento.residual_scale = resolved_scale(parcel, what);
        auto const begin = residual.begin() + static_cast<std::ptrdiff_t>(tensor.parcel_offset);
        memento.residual.assign(begin,
                                begin + static_cast<std::ptrdiff_t>(tensor.desc.num_elements));
      }
      // A lane's slots go with the first tensor in it.
      for (std::size_t l = 0; l < parcel.lanes.size(); ++l) {
        Lane const& lane = parcel.lanes[l];
        bool const first = lane.parcel_offset >= tensor.parcel_offset &&
                           (lane.parcel_offset == tensor.parcel_offset ||
                            lane.parcel_offset < tensor.parcel_offset + tensor.desc.num_elements);
        if (!first || told[l]) continue;
        told[l] = true;
        for (SlotState const& slot : lane.slots) {
          bool const use_next = what == Outcome::committed && *slot.written;
          Bytes const bytes = use_next ? slot.next.bytes() : slot.committed.bytes();
          memento.slots.push_back({slot.name + "@" + std::to_string(lane.info.offset_elements),
                                   slot.kind,
                                   {bytes.begin(), bytes.end()}});
        }
      }
      mementos[tensor.desc.name] = std::move(memento);
    }
  }
  return mementos;
}

void Hook::Impl::restore() {
  for (PlannedTensor const& tensor : tensors) {
    auto const found = shelf.find(tensor.desc.name);
    if (found == shelf.end()) continue;
    Memento memento = std::move(found->second);
    shelf.erase(found);
    Parcel& parcel = parcels[tensor.parcel];
    std::size_t const offset = static_cast<std::size_t>(tensor.parcel_offset);
    std::size_t const count = static_cast<std::size_t>(tensor.desc.num_elements);
    if (parcel.with_residual && memento.residual.size() == count) {
      // A parcel has one loss scale; a residual that was made at another is brought to it.
      if (parcel.residual_scale == 1.0F && offset == 0)
        parcel.residual_scale = memento.residual_scale;
      if (memento.residual_scale != parcel.residual_scale) {
        float const factor = parcel.residual_scale / memento.residual_scale;
        for (float& x : memento.residual) x *= factor;
      }
      if (device) {
        std::byte* const place = parcel.current.data() + offset * sizeof(float);
        Status copied =
            copy_in_order(stream(), memento.residual.data(), place, count * sizeof(float));
        if (copied.ok()) copied = gradsieve::synchronize(stream());
        if (!copied.ok()) throw Error(copied.code(), copied.message());
      } else if (parcel.residual_dtype == DType::bf16) {
        ExecContext const ctx = context(parcel, decode_workspace, decode_threads);
        kernels::narrow(ctx, memento.residual, true,
                        TensorView(parcel.current.as<BFloat16>().subspan(offset, count)));
      } else {
        std::ranges::copy(memento.residual,
                          parcel.current.as<float>().begin() + static_cast<std::ptrdiff_t>(offset));
      }
    }
    if (!parcel.with_residual && memento.residual.size() == count && count != 0)
      shelf[tensor.desc.name] = {std::move(memento.residual), memento.residual_scale, {}};
    for (Lane& lane : parcel.lanes) {
      if (lane.parcel_offset < tensor.parcel_offset ||
          lane.parcel_offset >=
              tensor.parcel_offset + std::max<std::uint64_t>(tensor.desc.num_elements, 1)) {
        continue;
      }
      for (SlotState& slot : lane.slots) {
        std::string const key = slot.name + "@" + std::to_string(lane.info.offset_elements);
        for (Memento::Slot const& old : memento.slots) {
          if (old.name == key && old.bytes.size() == slot.committed.num_bytes() &&
              !old.bytes.empty()) {
            std::memcpy(slot.committed.data(), old.bytes.data(), old.bytes.size());
          }
        }
      }
    }
  }
}

std::vector<std::byte> Hook::save_state() const {
  Impl& impl = *impl_;
  if (impl.in_step)
    throw Error(Code::invalid_usage, "save_state: a step is running; call finish first");
  static_cast<void>(impl.synchronize());
  if (impl.outcome == Outcome::in_doubt) {
    throw Error(Code::in_doubt,
                "save_state: the outcome of the last step is unknown; call recover first");
  }
  StateFile file;
  file.world_size = static_cast<std::uint32_t>(impl.transport->world_size());
  file.rank = static_cast<std::uint32_t>(impl.transport->rank());
  file.seed = impl.options.seed;
  file.step = impl.step;
  file.history = impl.history;
  for (auto& [name, memento] : impl.remember()) file.tensors.emplace(name, std::move(memento));
  return serialize(file);
}

void Hook::export_state(std::string const& path) const { write_state_file(path, save_state()); }

void Hook::import_state(std::span<std::string const> paths, OnWorldChange on_world_change) {
  std::vector<StateFile> files;
  for (std::string const& path : paths)
    files.push_back(parse_state(read_state_file(path), "'" + path + "'"));
  impl_->import_states(files, on_world_change);
}

void Hook::load_state(std::span<ConstBytes const> states, OnWorldChange on_world_change) {
  std::vector<StateFile> files;
  for (std::size_t i = 0; i < states.size(); ++i)
    files.push_back(parse_state(states[i], "state " + std::to_string(i)));
  impl_->import_states(files, on_world_change);
}

void Hook::Impl::import_states(std::span<StateFile> files, OnWorldChange on_world_change) {
  if (in_step) throw Error(Code::invalid_usage, "load_state: a step is running; call finish first");
  static_cast<void>(synchronize());
  if (!progress) throw Error(Code::invalid_usage, "load_state: call plan first");
  if (files.empty())
    throw Error(Code::invalid_argument,
                "load_state: no state named; expected one per old rank, or this rank's own");
  std::size_t const world_size = static_cast<std::size_t>(transport->world_size());
  std::size_t const rank = static_cast<std::size_t>(transport->rank());
  std::size_t const old_size = files[0].world_size;
  for (StateFile const& file : files) {
    if (file.world_size != old_size || file.step != files[0].step ||
        file.history != files[0].history) {
      throw Error(Code::mismatch, "load_state: the files are of different groups or steps");
    }
  }
  StateFile merged;
  if (old_size == world_size) {
    auto const own =
        std::ranges::find_if(files, [&](StateFile const& file) { return file.rank == rank; });
    if (own == files.end()) {
      throw Error(Code::invalid_argument,
                  "load_state: none of the files is of rank " + std::to_string(rank));
    }
    merged = std::move(*own);
  } else if (on_world_change == OnWorldChange::error) {
    throw Error(Code::mismatch, "load_state: saved by " + std::to_string(old_size) +
                                    " ranks, read by " + std::to_string(world_size) +
                                    "; say redistribute or reset");
  } else {
    if (on_world_change == OnWorldChange::redistribute && files.size() != old_size) {
      throw Error(Code::invalid_argument, "load_state: redistribute needs the files of all " +
                                              std::to_string(old_size) + " old ranks, got " +
                                              std::to_string(files.size()));
    }
    merged = redistribute(files, rank, world_size, on_world_change == OnWorldChange::reset);
  }
  for (PlannedTensor const& tensor : tensors) {
    auto const found = merged.tensors.find(tensor.desc.name);
    if (found == merged.tensors.end()) {
      throw Error(Code::mismatch, "load_state: the file has no tensor '" + tensor.desc.name + "'");
    }
    if (!found->second.residual.empty() &&
        found->second.residual.size() != tensor.desc.num_elements) {
      throw Error(Code::mismatch, "load_state: '" + tensor.desc.name + "' has " +
                                      std::to_string(found->second.residual.size()) +
                                      " elements in the file, " +
                                      std::to_string(tensor.desc.num_elements) + " in the plan");
    }
  }
  outcome = Outcome::none;
  for (Parcel& parcel : parcels) {
    parcel.reached = Reached::idle;
    parcel.residual_scale = 1.0F;
  }
  shelf = {std::make_move_iterator(merged.tensors.begin()),
           std::make_move_iterator(merged.tensors.end())};
  restore();
  step = merged.step;
  history = merged.history;
  if (device) upload_device_state();
}

std::vector<float> Hook::residual(std::string_view name) const {
  Impl& impl = *impl_;
  for (PlannedTensor const& tensor : impl.tensors) {
    if (tensor.desc.name != name) continue;
    Parcel& parcel = impl.parcels[tensor.parcel];
    std::size_t const count = static_cast<std::size_t>(tensor.desc.num_elements);
    if (!parcel.with_residual) return std::vector<float>(count, 0.0F);
    if (impl.device) static_cast<void>(impl.synchronize());
    Outcome const what =
        impl.in_step || impl.outcome == Outcome::in_doubt ? Outcome::none : impl.outcome;
    std::vector<float> whole(static_cast<std::size_t>(parcel.num_elements));
    impl.device ? impl.resolve_on_device(parcel, whole) : impl.resolve(parcel, what, whole);
    float const factor = 1.0F / impl.resolved_scale(parcel, what);
    std::vector<float> result(
        whole.begin() + static_cast<std::ptrdiff_t>(tensor.parcel_offset),
        whole.begin() + static_cast<std::ptrdiff_t>(tensor.parcel_offset + count));
    for (float& x : result) x *= factor;
    return result;
  }
  throw Error(Code::unknown_name, "residual: no tensor '" + std::string(name) + "' in the plan");
}

}  // namespace gradsieve
