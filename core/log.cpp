// SPDX-License-Identifier: Apache-2.0
#include "core/log.hpp"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/path_pattern.hpp"

namespace gradsieve {
namespace {

constexpr std::array<char const*, 5> kLevelNames = {"OFF", "VERSION", "WARN", "INFO", "TRACE"};

thread_local int this_rank = -1;

std::string_view variable(char const* name) noexcept {
  char const* const value = std::getenv(name);
  return value == nullptr ? std::string_view{} : value;
}

LogLevel level_of(std::string_view name) {
  for (std::size_t i = 0; i < kLevelNames.size(); ++i) {
    if (::strcasecmp(std::string(name).c_str(), kLevelNames[i]) == 0)
      return static_cast<LogLevel>(i);
  }
  return LogLevel::off;
}

// Read once; what a running process is asked to say does not change.
struct Settings {
  LogLevel level = level_of(variable("GRADSIEVE_DEBUG"));
  std::string subsystems{variable("GRADSIEVE_DEBUG_SUBSYS")};
  std::string host = host_name();
  int file = STDERR_FILENO;

  Settings() {
    std::string_view const pattern = variable("GRADSIEVE_DEBUG_FILE");
    if (level == LogLevel::off || pattern.empty()) return;
    int const opened =
        ::open(expand_path(pattern).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (opened >= 0) file = opened;
  }

  [[nodiscard]] bool wants(std::string_view subsystem) const noexcept {
    if (subsystems.empty()) return true;
    bool const inverted = subsystems.front() == '^';
    std::string_view rest = std::string_view(subsystems).substr(inverted ? 1 : 0);
    while (!rest.empty()) {
      std::size_t const comma = rest.find(',');
      if (rest.substr(0, comma) == subsystem) return !inverted;
      rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    }
    return inverted;
  }
};

Settings const& settings() noexcept {
  static Settings const& read = *new Settings;
  return read;
}

}  // namespace

bool log_enabled(LogLevel level, char const* subsystem) noexcept {
  return level <= settings().level && settings().wants(subsystem);
}

void set_log_rank(int rank) noexcept { this_rank = rank; }

void log(LogLevel level, char const* subsystem, char const* format, ...) noexcept {
  if (!log_enabled(level, subsystem)) return;
  std::array<char, 1024> line{};
  std::size_t const room = line.size() - 1;  // for the end of the line
  char rank[16] = "";
  if (this_rank >= 0) std::snprintf(rank, sizeof(rank), " [%d]", this_rank);
  int used = std::snprintf(line.data(), room, "%s:%d:%ld%s GRADSIEVE %s ", settings().host.c_str(),
                           static_cast<int>(::getpid()), static_cast<long>(::syscall(SYS_gettid)),
                           rank, kLevelNames[static_cast<std::size_t>(level)]);
  std::size_t length = used < 0 ? 0 : std::min(static_cast<std::size_t>(used), room - 1);
  std::va_list arguments;
  va_start(arguments, format);
  used = std::vsnprintf(line.data() + length, room - length, format, arguments);
  va_end(arguments);
  length += used < 0 ? 0 : std::min(static_cast<std::size_t>(used), room - length - 1);
  line[length] = '\n';
  // One write, so that lines of several ranks do not mix. Nobody can be told that it failed.
  [[maybe_unused]] auto const written = ::write(settings().file, line.data(), length + 1);
}

}  // namespace gradsieve
