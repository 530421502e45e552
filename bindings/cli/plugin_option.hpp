// SPDX-License-Identifier: Apache-2.0
// --plugin PATH, on every program that takes a spec.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "gradsieve/registry.hpp"

namespace gradsieve::cli {

/// Loads the named libraries before the command runs; their plug-ins are then like those of this
/// build.
inline void add_plugin_option(CLI::App& command) {
  command
      .add_option_function<std::vector<std::string>>(
          "--plugin",
          [](std::vector<std::string> const& paths) {
            try {
              for (std::string const& path : paths) load_builtin_plugin(path);
            } catch (Error const& error) {
              throw CLI::ValidationError("--plugin", error.what());
            }
          },
          "A shared library with a compressor (docs/plugin_abi.md); may be repeated")
      ->type_name("PATH")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

}  // namespace gradsieve::cli
