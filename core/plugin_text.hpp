// SPDX-License-Identifier: Apache-2.0
// What errors and lists say about plug-ins and their parameters.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradsieve/registry.hpp"

namespace gradsieve {

/// "a compressor", "an index codec": a kind as it stands in a sentence.
[[nodiscard]] std::string kind_phrase(PluginKind kind);

/// What a parameter takes: "a fraction in (0, 1]", "an integer in [1, 4096], in elements",
/// "one of: a, b", "true, false, on or off".
[[nodiscard]] std::string accepted_values(ParamInfo const& param);

/// The shortest digits that read back as this number; whole numbers without an exponent.
[[nodiscard]] std::string number_text(double value);

/// "a, b, c"
[[nodiscard]] std::string joined(std::span<std::string const> names);

/// "; did you mean 'topk'?" or nothing.
[[nodiscard]] std::string suggestion(std::string_view name,
                                     std::vector<std::string> const& candidates);

/// Says why `name` cannot stand where one of `kinds` is expected: Error(unknown_name) with the
/// nearest spelling and a list, or Error(invalid_argument) if it is the name of another kind.
/// The first kind names the place in the sentence.
[[noreturn]] void throw_wrong_plugin(Registry const& registry, std::string_view name,
                                     std::span<PluginKind const> kinds);

}  // namespace gradsieve
