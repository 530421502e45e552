// SPDX-License-Identifier: Apache-2.0
// Small parts that the value codecs share: sections of a body, checks of what a peer wrote, and the
// random numbers of a rounding.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gradsieve/context.hpp"
#include "gradsieve/wire.hpp"

#include "core/philox.hpp"

namespace gradsieve {

inline constexpr Status kBodyTooSmall{Code::capacity_exceeded,
                                      "the body's place is smaller than planned"};
inline constexpr Status kWorkspaceTooSmall{Code::internal, "the workspace is smaller than planned"};

/// A section of a body as f32; it starts at a multiple of 4 bytes (Compressor::encode checks it).
[[nodiscard]] inline std::span<float> as_floats(Bytes bytes) noexcept {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

/// `pad4` of docs/wire_format.md.
[[nodiscard]] constexpr std::size_t padded_to_4(std::size_t num_bytes) noexcept {
  return (num_bytes + 3) / 4 * 4;
}

[[nodiscard]] constexpr std::uint64_t num_blocks(std::uint64_t num_elements,
                                                 std::uint64_t block_elements) noexcept {
  return (num_elements + block_elements - 1) / block_elements;
}

[[nodiscard]] inline bool all_zero(ConstBytes bytes) noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

/// The random numbers with which a piece is rounded in this step, on this rank.
[[nodiscard]] inline RoundingKey rounding_key(ExecContext const& ctx,
                                              TensorInfo const& piece) noexcept {
  Purpose const purpose = ctx.owned ? Purpose::quantize_owned : Purpose::quantize;
  return {.key = philox_key(ctx.seed, piece.id, purpose, static_cast<std::uint32_t>(ctx.rank)),
          .step = ctx.backend == Backend::cuda ? StepValue<std::uint64_t>::in_word(&ctx.words->step)
                                               : StepValue<std::uint64_t>(ctx.words->step),
          .first_element = piece.offset_elements};
}

}  // namespace gradsieve
