// SPDX-License-Identifier: Apache-2.0
// The plug-ins of a registry, for programs.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "gradsieve/registry.hpp"

namespace gradsieve::bindings {

/// With all defaults; only compressors and sparsifiers claim something.
[[nodiscard]] std::optional<Claims> claims_of(PluginInfo const& plugin, Registry const& registry);

/// An object with the version and the list of plug-ins, each with its parameters and claims.
[[nodiscard]] std::string plugins_json(Registry const& registry, std::string_view version);

}  // namespace gradsieve::bindings
