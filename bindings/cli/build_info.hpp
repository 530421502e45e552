// SPDX-License-Identifier: Apache-2.0
// What CMake knew when this program was built.
#pragma once

namespace gradsieve::cli {

extern char const* const kVersion;
extern char const* const kCompiler;
extern char const* const kBuildSummary;  ///< a line for each option: what was found or is missing

}  // namespace gradsieve::cli
