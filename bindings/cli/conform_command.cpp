// SPDX-License-Identifier: Apache-2.0
// gradsieve conform: hands a plug-in to the conformance suite, a program of its own.
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

#include "gradsieve/vocabulary.hpp"

#include "bindings/cli/commands.hpp"

namespace gradsieve::cli {
namespace {

namespace fs = std::filesystem;

/// Beside this program where it is installed, among the tests where it was built.
fs::path find_suite() {
  std::error_code error;
  fs::path const here = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (fs::path const& candidate :
       {here / "gradsieve-conform", here / ".." / "tests" / "conformance_test"}) {
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  throw Error(Code::not_built, "the conformance suite is not here: expected " +
                                   (here / "gradsieve-conform").string() +
                                   ", which is built with GRADSIEVE_TESTS=ON");
}

}  // namespace

void run_conform(ConformOptions const& options) {
  std::string suite = find_suite().string();
  std::string flag = "--plugin";
  std::string path = options.plugin;
  std::array<char*, 4> arguments = {suite.data(), flag.data(), path.data(), nullptr};
  ::execv(suite.c_str(), arguments.data());
  throw Error(Code::io_error, "'" + suite + "' cannot be started: " + std::strerror(errno));
}

}  // namespace gradsieve::cli
