// SPDX-License-Identifier: Apache-2.0
#include "core/device_architecture.hpp"

#include <charconv>

namespace gradsieve {
namespace {

bool one_runs_on(std::string_view name, int device) noexcept {
  int number = 0;
  auto const [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  std::string_view const kind(end, static_cast<std::size_t>(name.data() + name.size() - end));
  bool const is_known = kind.empty() || kind == "-real" || kind == "-virtual";
  if (error != std::errc{} || !is_known) return true;
  bool const by_code = kind != "-virtual" && device / 10 == number / 10 && device >= number;
  bool const by_ptx = kind != "-real" && device >= number;
  return by_code || by_ptx;
}

}  // namespace

bool architectures_run_on(std::string_view architectures, int device) noexcept {
  while (!architectures.empty()) {
    std::size_t const end = architectures.find(',');
    if (one_runs_on(architectures.substr(0, end), device)) return true;
    if (end == std::string_view::npos) return false;
    architectures.remove_prefix(end + 1);
  }
  return false;
}

}  // namespace gradsieve
