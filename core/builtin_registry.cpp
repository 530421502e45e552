// SPDX-License-Identifier: Apache-2.0
// The plug-ins of this build. register_builtin_plugins() is generated from the gsv_add_plugin
// lines.
#include "gradsieve/registry.hpp"

namespace gradsieve {

Registry const& builtin_registry() {
  // Filled at the first use and not before main, so that no order of static objects matters.
  static Registry const registry = [] {
    Registry filled;
    register_builtin_plugins(filled);
    return filled;
  }();
  return registry;
}

}  // namespace gradsieve
