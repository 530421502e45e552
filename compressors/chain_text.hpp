// SPDX-License-Identifier: Apache-2.0
// The canonical spelling of a stage: what ranks compare and reports show.
#pragma once

#include "gradsieve/registry.hpp"

namespace gradsieve {

/// The stage with every parameter spelled out, in the order in which they are declared.
/// Throws what Registry::check throws.
[[nodiscard]] Stage canonical_stage(Stage const& stage, PluginInfo const& info,
                                    Registry const& registry);

}  // namespace gradsieve
