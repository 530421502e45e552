// SPDX-License-Identifier: Apache-2.0
#include "tests/support/plugin_specs.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>

namespace gradsieve::testing {
namespace {

std::string& only_plugin() {
  static std::string name;
  return name;
}

struct SpecLists {
  std::vector<SpecCase> all;
  std::vector<SpecCase> defaults;
  std::vector<RefusedSpec> refused;
};

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

/// Values at the ends of a parameter, and its choices, but for the default.
std::vector<std::string> other_values(ParamInfo const& param) {
  std::vector<std::string> values;
  if (param.type == ParamType::boolean) {
    values = {"true", "false"};
  } else if (param.type == ParamType::choice) {
    values = param.choices;
  } else {
    if (std::isfinite(param.min) && !param.min_excluded) values.push_back(number(param.min));
    // A million elements or steps say no more than these tests' 65537.
    if (std::isfinite(param.max)) values.push_back(number(std::min(param.max, 1048576.0)));
  }
  std::erase(values, param.default_value);
  return values;
}

std::string example_value(ParamInfo const& param) {
  if (!param.choices.empty()) return param.choices.front();
  if (param.type == ParamType::boolean) return "false";
  double const example = param.type == ParamType::integer ? 4.0 : 0.05;
  return number(std::min(std::max(example, param.min), param.max));
}

std::string arguments_with(PluginInfo const& info, std::string_view name, std::string_view value) {
  std::string text;
  for (ParamInfo const& param : info.params) {
    bool const is_named = param.name == name;
    if (!is_named && !param.default_value.empty()) continue;
    text += text.empty() ? "(" : ", ";
    text += param.name + "=" + (is_named ? std::string(value) : example_value(param));
  }
  return text.empty() ? text : text + ")";
}

class Collector {
 public:
  Collector() {
    for (PluginInfo const* info : plugins_under_test()) {
      if (info->kind == PluginKind::compressor) {
        add_variants(*info);
        add_byte_stages(*info);
      } else if (info->kind == PluginKind::sparsifier) {
        add_variants(*info);
        for (char const* codec : {"int8", "sign"}) {
          add(info->name + "_" + codec, default_stage(*info) + " | " + codec, info, true);
        }
        add_byte_stages(*info);
        add_index_forms(*info);
      }
    }
  }
  SpecLists lists;

 private:
  static std::string default_stage(PluginInfo const& info) {
    return info.name + required_arguments(info);
  }

  void add_variants(PluginInfo const& info) {
    add(info.name, default_stage(info), &info, true);
    for (ParamInfo const& param : info.params) {
      for (std::string const& value : other_values(param)) {
        add(info.name + "_" + param.name + "_" + value,
            info.name + arguments_with(info, param.name, value), &info, false);
      }
    }
  }

  void add_byte_stages(PluginInfo const& info) {
    for (PluginInfo const* stage : builtin_registry().plugins()) {
      if (stage->kind == PluginKind::byte_codec) {
        add(info.name + "_" + stage->name, default_stage(info) + " | " + stage->name, &info, true);
      }
    }
  }

  void add_index_forms(PluginInfo const& info) {
    for (PluginInfo const* stage : builtin_registry().plugins()) {
      if (stage->kind != PluginKind::index_codec) continue;
      for (ParamInfo const& param : stage->params) {
        for (std::string const& value : other_values(param)) {
          std::string const argument =
              stage->positional == param.name ? value : param.name + "=" + value;
          add(info.name + "_" + stage->name + "_" + value,
              default_stage(info) + " | none | " + stage->name + "(" + argument + ")", &info,
              false);
        }
      }
    }
  }

  void add(std::string const& name, std::string const& spec, PluginInfo const* info,
           bool is_default) {
    try {
      SpecCase found{test_name(name), spec, make_chain(spec)};
      while (std::ranges::any_of(lists.all, [&](auto const& c) { return c.name == found.name; })) {
        found.name += "_x";
      }
      lists.all.push_back(found);
      if (is_default) lists.defaults.push_back(found);
    } catch (Error const& error) {
      bool const shared = info->kind == PluginKind::sparsifier &&
                          builtin_registry()
                              .make_sparsifier(parse_spec(default_stage(*info)).chain[0])
                              ->claims()
                              .shared_indices;
      lists.refused.push_back({spec, shared, error.code(), error.what()});
    }
  }
};

SpecLists const& lists() {
  static SpecLists const collected = Collector().lists;
  return collected;
}

}  // namespace

std::vector<PluginInfo const*> plugins_under_test() {
  std::vector<PluginInfo const*> plugins = builtin_registry().plugins();
  std::erase_if(plugins, [](PluginInfo const* info) {
    return !only_plugin().empty() && info->name != only_plugin();
  });
  return plugins;
}

void ask_only_about(std::string const& plugin) { only_plugin() = plugin; }

std::string required_arguments(PluginInfo const& info) { return arguments_with(info, "", ""); }

std::string test_name(std::string text) {
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return text;
}

std::vector<SpecCase> const& all_specs() { return lists().all; }
std::vector<SpecCase> const& default_specs() { return lists().defaults; }
std::vector<RefusedSpec> const& refused_specs() { return lists().refused; }

std::vector<SpecCase> specs_that(bool (*claim)(Chain const&)) {
  std::vector<SpecCase> result;
  for (SpecCase const& spec_case : all_specs()) {
    if (claim(spec_case.chain)) result.push_back(spec_case);
  }
  return result;
}

Chain with_feedback(SpecCase const& spec_case) {
  return make_chain(spec_case.spec + " ; feedback=residual");
}

}  // namespace gradsieve::testing
