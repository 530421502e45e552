// SPDX-License-Identifier: Apache-2.0
// What a tensor remembers between steps, as declared by compressors and seen by them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve {

/// What a change of world size, an export and a rollback do to a slot.
enum class SlotKind : std::uint8_t {
  local_sum,    ///< each rank has its own; the sum over ranks is conserved (a residual)
  replicated,   ///< equal on all ranks (an index set)
  partitioned,  ///< by owner
};

/// A slot that a compressor asks for at plan time. Every slot has two copies: the committed one and
/// the one that the running step writes, exchanged when the step commits.
struct SlotInfo {
  std::string_view name;
  SlotKind kind = SlotKind::replicated;
  std::uint64_t num_bytes = 0;
};

/// One slot during a step.
struct SlotView {
  SlotInfo info;
  ConstBytes committed;     ///< as the last committed step left it; zeros at first
  Bytes next;               ///< what this step writes
  bool* written = nullptr;  ///< set when `next` was written in this step

  /// The value that holds from here on in this step.
  [[nodiscard]] ConstBytes latest() const noexcept {
    return *written ? ConstBytes(next) : committed;
  }
};

struct StateView {
  std::span<SlotView const> slots;
};

}  // namespace gradsieve
