// SPDX-License-Identifier: Apache-2.0
// Patterns of policy rules.
#pragma once

#include <string_view>

namespace gradsieve {

/// True if `pattern` matches all of `text`: `*` stands for any characters, none included, and `?`
/// for one. Every other character stands for itself; there is no escape. Time is
/// O(pattern · text) at worst.
[[nodiscard]] bool glob_match(std::string_view pattern, std::string_view text) noexcept;

}  // namespace gradsieve
