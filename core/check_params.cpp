// SPDX-License-Identifier: Apache-2.0
// A stage's arguments against the schema of its plug-in. Strict: what is not clearly right is an
// error that says what would have been.
#include <charconv>
#include <cmath>
#include <optional>

#include "gradsieve/registry.hpp"

#include "core/plugin_text.hpp"

namespace gradsieve {
namespace {

// from_chars takes no blanks, no plus sign and no hexadecimal, but it does take inf and nan.
std::optional<double> parse_real(std::string_view text) {
  double value = 0.0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<bool> parse_boolean(std::string_view text) {
  if (text == "true" || text == "on") return true;
  if (text == "false" || text == "off") return false;
  return std::nullopt;
}

std::vector<std::string> names_of(PluginInfo const& info) {
  std::vector<std::string> names;
  for (ParamInfo const& param : info.params) names.push_back(param.name);
  return names;
}

// "topk takes: density, hold"
std::string takes(PluginInfo const& info) {
  return info.name +
         (info.params.empty() ? " takes no parameters" : " takes: " + joined(names_of(info)));
}

ParamInfo const* find_param(PluginInfo const& info, std::string_view name) {
  for (ParamInfo const& param : info.params) {
    if (param.name == name) return &param;
  }
  return nullptr;
}

ParamInfo const& param_of(PluginInfo const& info, Stage::Argument const& argument) {
  if (argument.key.empty() && info.positional.empty()) {
    throw Error(Code::invalid_argument,
                info.name + ": the argument '" + argument.value + "' has no name; " + takes(info));
  }
  std::string const& name = argument.key.empty() ? info.positional : argument.key;
  ParamInfo const* const param = find_param(info, name);
  if (param != nullptr) return *param;
  std::string const near = suggestion(name, names_of(info));
  throw Error(Code::unknown_name, info.name + ": unknown parameter '" + name + "'" + near +
                                      (near.empty() ? "; " : " ") + takes(info));
}

[[noreturn]] void refuse(PluginInfo const& info, ParamInfo const& param, std::string const& text,
                         char const* why) {
  throw Error(Code::invalid_argument, info.name + ": " + param.name + "=" + text + " " + why +
                                          ": expected " + accepted_values(param));
}

template <typename T>
T within(PluginInfo const& info, ParamInfo const& param, std::string const& text, T value) {
  // long double holds every 64-bit integer, so a bound is never missed by rounding.
  auto const exact = static_cast<long double>(value);
  bool const low = param.min_excluded ? !(exact > static_cast<long double>(param.min))
                                      : exact < static_cast<long double>(param.min);
  if (low || exact > static_cast<long double>(param.max))
    refuse(info, param, text, "is out of range");
  return value;
}

Params::Value parse_value(PluginInfo const& info, ParamInfo const& param, std::string const& text) {
  switch (param.type) {
    case ParamType::real:
      if (auto const value = parse_real(text)) return within(info, param, text, *value);
      refuse(info, param, text, "is not a number");
    case ParamType::integer:
      if (auto const value = parse_integer(text)) return within(info, param, text, *value);
      refuse(info, param, text, "is not an integer");
    case ParamType::boolean:
      if (auto const value = parse_boolean(text)) return *value;
      refuse(info, param, text, "is neither true nor false");
    case ParamType::choice:
      for (std::string const& choice : param.choices) {
        if (text == choice) return text;
      }
      break;
  }
  std::string const near = suggestion(text, param.choices);
  throw Error(Code::invalid_argument,
              info.name + ": " + param.name + "=" + text + " is not a choice" + near +
                  (near.empty() ? ": e" : " E") + "xpected " + accepted_values(param));
}

}  // namespace

Params Registry::check(Stage const& stage, PluginInfo const& info) const {
  std::map<std::string, Params::Value, std::less<>> values;
  for (Stage::Argument const& argument : stage.arguments) {
    ParamInfo const& param = param_of(info, argument);
    Params::Value value = parse_value(info, param, argument.value);
    if (!values.emplace(param.name, std::move(value)).second) {
      throw Error(Code::invalid_argument,
                  info.name + ": the parameter '" + param.name + "' is given twice");
    }
  }
  for (ParamInfo const& param : info.params) {
    if (!values.contains(param.name))
      values.emplace(param.name, parse_value(info, param, param.default_value));
  }
  return Params(std::move(values));
}

}  // namespace gradsieve
