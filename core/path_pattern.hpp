// SPDX-License-Identifier: Apache-2.0
// Names of files that many processes write: each gets its own.
#pragma once

#include <string>
#include <string_view>

namespace gradsieve {

[[nodiscard]] std::string host_name();

/// `pattern` with %h the host, %p the process, %r the rank ("?" if there is none) and %% a percent.
[[nodiscard]] std::string expand_path(std::string_view pattern, int rank = -1);

}  // namespace gradsieve
