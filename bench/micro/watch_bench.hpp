// SPDX-License-Identifier: Apache-2.0
// What it costs to be watched: clocks, ranges and lines, one by one.
#pragma once

namespace gradsieve::bench {

/// Rows `watch/…`: nanoseconds each, in the thread's CPU time. Lines of GRADSIEVE_DEBUG cost what
/// the environment of this run makes of them.
void add_watch_rows();

}  // namespace gradsieve::bench
