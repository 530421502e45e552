// SPDX-License-Identifier: Apache-2.0
// Messages for people who look for a fault. Silent unless GRADSIEVE_DEBUG asks; errors never come
// this way alone.
#pragma once

#include <cstdint>

namespace gradsieve {

/// GRADSIEVE_DEBUG=VERSION|WARN|INFO|TRACE: each level includes those before it.
enum class LogLevel : std::uint8_t { off = 0, version = 1, warn = 2, info = 3, trace = 4 };

/// Subsystems are "INIT", "CODEC", "COMM" and "EF"; GRADSIEVE_DEBUG_SUBSYS=INIT,COMM or ^EF
/// chooses.
[[nodiscard]] bool log_enabled(LogLevel level, char const* subsystem) noexcept;

/// The rank that this thread's lines name; -1, the default, for none.
void set_log_rank(int rank) noexcept;

/// One line, `host:pid:tid [rank] GRADSIEVE INFO message`, to stderr or to GRADSIEVE_DEBUG_FILE,
/// where %h stands for the host and %p for the process. Allocates nothing; cut at 1 KiB.
[[gnu::format(printf, 3, 4)]] void log(LogLevel level, char const* subsystem, char const* format,
                                       ...) noexcept;

}  // namespace gradsieve
