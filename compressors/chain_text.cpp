// SPDX-License-Identifier: Apache-2.0
#include "compressors/chain_text.hpp"

#include <array>
#include <charconv>
#include <string>

namespace gradsieve {
namespace {

// The shortest digits that read back as the same double: equal on every rank and in every language.
std::string shortest(double value) {
  std::array<char, 32> digits{};
  auto const end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

std::string value_of(ParamInfo const& param, Params const& params) {
  switch (param.type) {
    case ParamType::real:
      return shortest(params.real(param.name));
    case ParamType::integer:
      return std::to_string(params.integer(param.name));
    case ParamType::boolean:
      return params.boolean(param.name) ? "true" : "false";
    case ParamType::choice:
      return params.choice(param.name);
  }
  return {};
}

}  // namespace

Stage canonical_stage(Stage const& stage, PluginInfo const& info, Registry const& registry) {
  Params const params = registry.check(stage, info);
  Stage canonical{info.name, {}};
  for (ParamInfo const& param : info.params) {
    canonical.arguments.push_back({param.name, value_of(param, params)});
  }
  return canonical;
}

}  // namespace gradsieve
