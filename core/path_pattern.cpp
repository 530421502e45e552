// SPDX-License-Identifier: Apache-2.0
#include "core/path_pattern.hpp"

#include <array>

#include <unistd.h>

namespace gradsieve {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

std::string expand_path(std::string_view pattern, int rank) {
  std::string path;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    char const next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (next == 'h') path += host_name();
    if (next == 'p') path += std::to_string(::getpid());
    if (next == 'r') path += rank < 0 ? "?" : std::to_string(rank);
    if (next == '%') path += '%';
    if (next == 'h' || next == 'p' || next == 'r' || next == '%') {
      ++i;
    } else {
      path += pattern[i];
    }
  }
  return path;
}

}  // namespace gradsieve
