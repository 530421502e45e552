// SPDX-License-Identifier: Apache-2.0
// gradsieve list
#include <cmath>
#include <iostream>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "gradsieve/registry.hpp"

#include "bindings/cli/build_info.hpp"
#include "bindings/cli/claims_text.hpp"
#include "bindings/cli/commands.hpp"
#include "core/plugin_text.hpp"

namespace gradsieve::cli {
namespace {

using Json = nlohmann::ordered_json;

/// With all defaults; only compressors and sparsifiers claim something.
std::optional<Claims> claims_of(PluginInfo const& plugin) {
  Stage const stage{plugin.name, {}};
  if (plugin.kind == PluginKind::compressor)
    return builtin_registry().make_compressor(stage)->claims();
  if (plugin.kind == PluginKind::sparsifier)
    return builtin_registry().make_sparsifier(stage)->claims();
  return std::nullopt;
}

char const* type_name(ParamType type) {
  switch (type) {
    case ParamType::real:
      return "real";
    case ParamType::integer:
      return "integer";
    case ParamType::boolean:
      return "boolean";
    case ParamType::choice:
      return "choice";
  }
  return "";
}

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
  if (auto const claims = claims_of(plugin)) std::cout << "  claims: " << held(*claims) << '\n';
  for (ParamInfo const& param : plugin.params) {
    std::cout << "    " << param.name << " = " << param.default_value << "  ("
              << accepted_values(param) << ")"
              << (param.name == plugin.positional ? "  [needs no key]" : "") << '\n';
    if (!param.summary.empty()) std::cout << "        " << param.summary << '\n';
  }
}

// --- for programs --------------------------------------------------------------------------------

Json json_of(ParamInfo const& param, bool positional) {
  Json json = {{"name", param.name},
               {"type", type_name(param.type)},
               {"unit", param.unit},
               {"default", param.default_value},
               {"min", nullptr},
               {"max", nullptr},
               {"min_excluded", param.min_excluded},
               {"choices", param.choices},
               {"accepts", accepted_values(param)},
               {"positional", positional},
               {"summary", param.summary}};
  // JSON has no infinity: null stands for no limit.
  if (std::isfinite(param.min)) json["min"] = param.min;
  if (std::isfinite(param.max)) json["max"] = param.max;
  return json;
}

Json json_of(Claims const& claims) {
  return {{"deterministic", claims.deterministic},
          {"lossless", claims.lossless},
          {"fixed_rate", claims.fixed_rate},
          {"unbiased", claims.unbiased},
          {"shared_indices", claims.shared_indices},
          {"elementwise", claims.elementwise},
          {"f64", claims.f64},
          {"contraction", claims.contraction},
          {"residual", claims.residual == ResidualRule::own_payload ? "own_payload" : "aggregate"}};
}

Json json_of(PluginInfo const& plugin) {
  Json params = Json::array();
  for (ParamInfo const& param : plugin.params)
    params.push_back(json_of(param, param.name == plugin.positional));
  Json json = {{"name", plugin.name},
               {"kind", plugin_kind_name(plugin.kind)},
               {"payload_id", plugin.payload_id},
               {"summary", plugin.summary},
               {"paper", plugin.paper},
               {"params", params},
               {"claims", nullptr}};
  if (auto const claims = claims_of(plugin)) json["claims"] = json_of(*claims);
  return json;
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
  Json json = {{"version", kVersion}, {"plugins", Json::array()}};
  for (PluginInfo const* const plugin : plugins) json["plugins"].push_back(json_of(*plugin));
  std::cout << json.dump(1) << '\n';
}

}  // namespace gradsieve::cli
