// SPDX-License-Identifier: Apache-2.0
// What a payload's header takes from the step's words.
#pragma once

#include <cstdint>

#include "gradsieve/context.hpp"
#include "gradsieve/wire.hpp"

namespace gradsieve::kernels {

static_assert(kFlagNonFinite == kStepNonFinite && kFlagOverflow == kStepOverflow);

/// As WriteHeaderFn says.
[[nodiscard]] constexpr PayloadHeader completed(PayloadHeader header, StepWords const& words,
                                                std::uint64_t body_bytes) noexcept {
  bool const is_corrupt = (words.flags & kStepCorrupt) != 0;
  header.step = words.step;
  header.flags =
      static_cast<std::uint16_t>(header.flags | (words.flags & (kStepNonFinite | kStepOverflow)));
  header.body_bytes = is_corrupt ? 0 : body_bytes;
  if (is_corrupt && header.status == 0) {
    header.status = static_cast<std::uint32_t>(Code::corrupt_payload);
  }
  return header;
}

}  // namespace gradsieve::kernels
