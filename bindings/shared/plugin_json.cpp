// SPDX-License-Identifier: Apache-2.0
#include "bindings/shared/plugin_json.hpp"

#include <cmath>

#include <nlohmann/json.hpp>

#include "core/plugin_text.hpp"

namespace gradsieve::bindings {
namespace {

using Json = nlohmann::ordered_json;

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
          {"cuda", claims.cuda},
          {"contraction", claims.contraction},
          {"residual", claims.residual == ResidualRule::own_payload ? "own_payload" : "aggregate"}};
}

Json json_of(PluginInfo const& plugin, Registry const& registry) {
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
  if (auto const claims = claims_of(plugin, registry)) json["claims"] = json_of(*claims);
  return json;
}

}  // namespace

std::optional<Claims> claims_of(PluginInfo const& plugin, Registry const& registry) {
  Stage const stage{plugin.name, {}};
  if (plugin.kind == PluginKind::compressor) return registry.make_compressor(stage)->claims();
  if (plugin.kind == PluginKind::sparsifier) return registry.make_sparsifier(stage)->claims();
  return std::nullopt;
}

std::string plugins_json(Registry const& registry, std::string_view version) {
  Json json = {{"version", version}, {"plugins", Json::array()}};
  for (PluginInfo const* const plugin : registry.plugins())
    json["plugins"].push_back(json_of(*plugin, registry));
  return json.dump(1);
}

}  // namespace gradsieve::bindings
