// SPDX-License-Identifier: Apache-2.0
#include "core/plugin_text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "core/nearest.hpp"

namespace gradsieve {
namespace {

std::string range(ParamInfo const& param) {
  bool const lower = std::isfinite(param.min);
  bool const upper = std::isfinite(param.max);
  if (lower && upper)
    return std::string(" in ") + (param.min_excluded ? "(" : "[") + number_text(param.min) + ", " +
           number_text(param.max) + "]";
  if (lower) return (param.min_excluded ? " above " : " of at least ") + number_text(param.min);
  if (upper) return " of at most " + number_text(param.max);
  return "";
}

}  // namespace

std::string_view plugin_kind_name(PluginKind kind) noexcept {
  switch (kind) {
    case PluginKind::compressor:
      return "compressor";
    case PluginKind::sparsifier:
      return "sparsifier";
    case PluginKind::index_codec:
      return "index_codec";
    case PluginKind::byte_codec:
      return "byte_codec";
    case PluginKind::feedback:
      return "feedback";
  }
  return "unknown";
}

std::string kind_phrase(PluginKind kind) {
  if (kind == PluginKind::feedback) return "a kind of feedback";
  std::string name(plugin_kind_name(kind));
  std::replace(name.begin(), name.end(), '_', ' ');
  return (kind == PluginKind::index_codec ? "an " : "a ") + name;
}

std::string joined(std::span<std::string const> names) {
  std::string text;
  for (std::string const& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string suggestion(std::string_view name, std::vector<std::string> const& candidates) {
  std::string const near = nearest(name, candidates);
  return near.empty() ? "" : "; did you mean '" + near + "'?";
}

std::string number_text(double value) {
  // Shortest is 1e+05; a person writes 100000. Up to 2^53 every whole number is itself.
  bool const whole = std::trunc(value) == value && std::fabs(value) < 0x1p53 && value != 0.0;
  if (whole) return std::to_string(static_cast<std::int64_t>(value));
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

std::string accepted_values(ParamInfo const& param) {
  switch (param.type) {
    case ParamType::boolean:
      return "true, false, on or off";
    case ParamType::choice:
      return "one of: " + joined(param.choices);
    case ParamType::real:
      if (param.unit == "fraction") return "a fraction" + range(param);
      break;
    case ParamType::integer:
      break;
  }
  std::string const noun = param.type == ParamType::integer ? "an integer" : "a number";
  return noun + range(param) + (param.unit.empty() ? "" : ", in " + param.unit);
}

void throw_wrong_plugin(Registry const& registry, std::string_view name,
                        std::span<PluginKind const> kinds) {
  std::string const quoted = "'" + std::string(name) + "'";
  std::string const place = kind_phrase(kinds.front());
  for (PluginInfo const* const other : registry.plugins()) {
    if (other->name != name) continue;
    throw Error(Code::invalid_argument, quoted + " is " + kind_phrase(other->kind) +
                                            " and cannot stand where " + place + " is expected");
  }
  std::vector<std::string> names;
  for (PluginInfo const* const plugin : registry.plugins()) {
    if (std::find(kinds.begin(), kinds.end(), plugin->kind) != kinds.end())
      names.push_back(plugin->name);
  }
  std::sort(names.begin(), names.end());
  std::string const near = suggestion(name, names);
  std::string const kind = place.substr(place.find(' ') + 1);
  throw Error(Code::unknown_name, "no " + kind + " " + quoted + near +
                                      (near.empty() ? "; this" : " This") +
                                      " build has: " + (names.empty() ? "none" : joined(names)));
}

}  // namespace gradsieve
