// SPDX-License-Identifier: Apache-2.0
// gradsieve list
#include <iostream>
#include <string>

#include "gradsieve/registry.hpp"

#include "bindings/cli/build_info.hpp"
#include "bindings/cli/claims_text.hpp"
#include "bindings/cli/commands.hpp"
#include "bindings/shared/plugin_json.hpp"
#include "core/plugin_text.hpp"

namespace gradsieve::cli {
namespace {

// --- for people ----------------------------------------------------------------------------------

/// The claims that hold, in a line.
std::string held(Claims const& claims) {
  std::string text;
  for (auto const& [name, value] : claims_text(claims)) {
    if (value == "no" || value == "0" || value == "own_payload") continue;
    text += (text.empty() ? "" : ", ") + name + (value == "yes" ? "" : " " + value);
  }
  return text;
}

void print(PluginInfo const& plugin) {
  std::cout << "\n"
            << plugin.name << " ("
            << kind_phrase(plugin.kind).substr(kind_phrase(plugin.kind).find(' ') + 1) << ")\n";
  std::cout << "  " << plugin.summary << '\n';
  if (!plugin.paper.empty() && plugin.paper != "-") std::cout << "  " << plugin.paper << '\n';
  if (auto const claims = bindings::claims_of(plugin, builtin_registry()))
    std::cout << "  claims: " << held(*claims) << '\n';
  for (ParamInfo const& param : plugin.params) {
    std::cout << "    " << param.name << " = " << param.default_value << "  ("
              << accepted_values(param) << ")"
              << (param.name == plugin.positional ? "  [needs no key]" : "") << '\n';
    if (!param.summary.empty()) std::cout << "        " << param.summary << '\n';
  }
}

}  // namespace

void run_list(ListOptions const& options) {
  auto const plugins = builtin_registry().plugins();
  if (!options.json) {
    std::cout
        << "a spec is [sparsifier] | [compressor] | [index codec] | [byte codec] ; clause=value\n";
    for (PluginInfo const* const plugin : plugins) print(*plugin);
    return;
  }
  std::cout << bindings::plugins_json(builtin_registry(), kVersion) << '\n';
}

}  // namespace gradsieve::cli
