// SPDX-License-Identifier: Apache-2.0
// How a message of any length begins, when both sides must know each length before.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradsieve {

/// The first bytes of a message. All ranks run on machines of one kind: it travels as it is.
struct NcclFrameHeader {
  static constexpr std::uint32_t kMagic = 0x4746'5331;  // "GFS1"

  std::uint32_t magic = kMagic;
  std::uint32_t channel = 0;
  std::uint32_t tag = 0;
  std::uint32_t reserved = 0;
  std::uint64_t num_bytes = 0;  ///< of the message
  std::uint64_t reserved2 = 0;
};
static_assert(sizeof(NcclFrameHeader) == 32);

/// A frame is a header and the message's first bytes; it always travels whole, so that a vote and a
/// handshake are one piece.
inline constexpr std::size_t kNcclFrameBytes = 4096;
inline constexpr std::size_t kNcclFrameRoom = kNcclFrameBytes - sizeof(NcclFrameHeader);
/// The rest comes in pieces of this size, the last of which is shorter.
inline constexpr std::size_t kNcclPieceBytes = 32768;
static_assert(kNcclPieceBytes >= kNcclFrameBytes);

inline constexpr std::uint32_t kNcclHelloTag = 0x4e43'4849;

}  // namespace gradsieve
