// SPDX-License-Identifier: Apache-2.0
// How a message of 64-bit length becomes pieces that an `int` can count.
#pragma once

#include <cstdint>

namespace gradsieve {

/// One piece of a message: `num_bytes` bytes from `offset_bytes` on.
struct Chunk {
  std::uint64_t offset_bytes = 0;
  int num_bytes = 0;
  bool last = false;
};

/// The piece that begins at `offset_bytes`. All but the last have exactly `chunk_bytes`; the last
/// has fewer, perhaps none, so that the receiver sees where the message ends without being told its
/// length: ⌊message / chunk⌋ + 1 pieces.
[[nodiscard]] constexpr Chunk chunk_at(std::uint64_t message_bytes, int chunk_bytes,
                                       std::uint64_t offset_bytes) noexcept {
  std::uint64_t const rest_bytes = message_bytes - offset_bytes;
  bool const last = rest_bytes < static_cast<std::uint64_t>(chunk_bytes);
  return {offset_bytes, last ? static_cast<int>(rest_bytes) : chunk_bytes, last};
}

}  // namespace gradsieve
