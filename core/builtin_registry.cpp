// SPDX-License-Identifier: Apache-2.0
// The plug-ins of this build. register_builtin_plugins() is generated from the gsv_add_plugin
// lines.
#include <atomic>

#include "gradsieve/registry.hpp"

namespace gradsieve {
namespace {

std::atomic<bool> in_use{false};

Registry& filled_registry() {
  // Filled at the first use and not before main, so that no order of static objects matters.
  static Registry registry = [] {
    Registry filled;
    register_builtin_plugins(filled);
    return filled;
  }();
  return registry;
}

}  // namespace

Registry const& builtin_registry() {
  in_use.store(true, std::memory_order_relaxed);
  return filled_registry();
}

std::string load_builtin_plugin(std::string const& path) {
  // Whoever has seen the registry may rely on it: it does not change from there on.
  if (in_use.load(std::memory_order_relaxed))
    throw Error(
        Code::invalid_usage,
        "load_builtin_plugin: the registry is in use; expected a call at the start of main");
  return load_plugin(filled_registry(), path);
}

}  // namespace gradsieve
