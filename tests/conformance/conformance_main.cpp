// SPDX-License-Identifier: Apache-2.0
// The suite on the plug-ins of this build, or with --plugin PATH on the one in that library.
#include <cstdio>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradsieve/registry.hpp"

#include "tests/support/plugin_specs.hpp"

int main(int argc, char** argv) try {
  // Before GoogleTest makes its cases, because they come from the registry.
  if (argc >= 3 && std::string_view(argv[1]) == "--plugin") {
    std::string const name = gradsieve::load_builtin_plugin(argv[2]);
    gradsieve::testing::ask_only_about(name);
    // What no claim asks for has no cases, and that is fine. GTEST_FILTER=-NAME leaves a test out.
    std::string const given = GTEST_FLAG_GET(filter);
    GTEST_FLAG_SET(filter, "Registry/*" + (given.starts_with('-') ? given : ""));
    GTEST_FLAG_SET(brief, true);
    std::printf("conformance of '%s' from %s\n", name.c_str(), argv[2]);
    argv[2] = argv[0];
    argv += 2;
    argc -= 2;
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
} catch (gradsieve::Error const& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
