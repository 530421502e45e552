// SPDX-License-Identifier: Apache-2.0
// What a hook must keep, in memory and in files.
#include "bindings/c/guard.hpp"
#include "bindings/c/handles.hpp"

using namespace gradsieve;

namespace {

OnWorldChange on_world_change_of(gsvOnWorldChange_t const& value) {
  switch (c::choice(value, gsvWorldChangeReset, "on_world_change")) {
    case gsvWorldChangeRedistribute:
      return OnWorldChange::redistribute;
    case gsvWorldChangeReset:
      return OnWorldChange::reset;
    default:
      return OnWorldChange::error;
  }
}

}  // namespace

extern "C" {

gsvResult_t gsvHookSaveState(gsvHook_t hook, void* state, uint64_t capacity_bytes,
                             uint64_t* num_bytes) {
  return c::guard([&] {
    std::vector<std::byte> const saved = c::required(hook, "hook").hook.save_state();
    c::required(num_bytes, "num_bytes") = saved.size();
    if (state == nullptr) return;
    if (capacity_bytes < saved.size())
      throw Error(Code::capacity_exceeded, "the state has " + std::to_string(saved.size()) +
                                               " bytes; there is room for " +
                                               std::to_string(capacity_bytes));
    std::memcpy(state, saved.data(), saved.size());
  });
}

gsvResult_t gsvHookLoadState(gsvHook_t hook, void const* const* states, uint64_t const* num_bytes,
                             uint32_t num_states, gsvOnWorldChange_t on_world_change) {
  return c::guard([&] {
    auto const starts = c::required_array(states, num_states, "states");
    auto const sizes = c::required_array(num_bytes, num_states, "num_bytes");
    std::vector<ConstBytes> given;
    for (std::size_t i = 0; i < num_states; ++i) {
      given.push_back(
          c::required_array(static_cast<std::byte const*>(starts[i]), sizes[i], "states"));
    }
    c::required(hook, "hook").hook.load_state(given, on_world_change_of(on_world_change));
  });
}

gsvResult_t gsvHookExportState(gsvHook_t hook, char const* path) {
  return c::guard(
      [&] { c::required(hook, "hook").hook.export_state(c::required_text(path, "path")); });
}

gsvResult_t gsvHookImportState(gsvHook_t hook, char const* const* paths, uint32_t num_paths,
                               gsvOnWorldChange_t on_world_change) {
  return c::guard([&] {
    std::vector<std::string> names;
    for (char const* const path : c::required_array(paths, num_paths, "paths"))
      names.push_back(c::required_text(path, "paths"));
    c::required(hook, "hook").hook.import_state(names, on_world_change_of(on_world_change));
  });
}

}  // extern "C"
