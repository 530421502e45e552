// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gradsieve {

class Registry;

/// Adds a plug-in that the caller has in memory and returns its name. `table` points to a
/// gsvPluginV1x, which is copied; what it points to stays for good. Throws as load_plugin() does.
std::string add_plugin(Registry& registry, void const* table);

}  // namespace gradsieve
