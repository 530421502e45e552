// SPDX-License-Identifier: Apache-2.0
// The host's side of plugin.h: our types as C has them, and the services for plug-ins.
#pragma once

#include <span>

#include "gradsieve/compressor.hpp"
#include "gradsieve/plugin.h"

namespace gradsieve::plugin {

[[nodiscard]] gsvPiece piece_of(TensorInfo const& info) noexcept;
[[nodiscard]] gsvSlot slot_of(SlotView const& slot) noexcept;
/// The words themselves: on both sides they have one layout.
[[nodiscard]] gsvStepWords* words_of(StepWords& words) noexcept;
/// Both refer to what they are made from.
[[nodiscard]] gsvReceived received_of(std::span<ConstBytes const> const& bodies) noexcept;
[[nodiscard]] gsvMassSink sink_of(MassSink& sink) noexcept;

[[nodiscard]] gsvHost const& host() noexcept;

}  // namespace gradsieve::plugin
