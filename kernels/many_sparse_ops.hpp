// SPDX-License-Identifier: Apache-2.0
// Kernels that select from many small tensors in one call: on a device one launch, in which a
// thread block holds a whole tensor. The result is that of the kernels in ops.hpp for each segment
// in turn; bodies are sparse ones, laid out by capacity (docs/wire_format.md).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/many_ops.hpp"

namespace gradsieve::kernels {

/// Most elements of a segment, and most blocks that are chosen from.
inline constexpr std::uint64_t kMostHeldElements = 16384;
inline constexpr std::uint64_t kMostHeldBlocks = 2048;

/// One tensor: where its parts begin in the arrays of a call.
struct SparseSegment {
  std::uint64_t in_gradient = 0;             ///< elements in front of it
  std::uint64_t in_residual = 0;             ///< elements in front of it
  std::uint64_t num_elements = 0;            ///< 1 ... kMostHeldElements
  std::uint64_t granularity = 1;             ///< elements that an index stands for
  std::uint64_t in_indices = 0;              ///< indices in front of its own
  std::uint64_t in_values = 0;               ///< values in front of its own
  std::uint64_t num_values = 0;              ///< room for values
  std::uint64_t body_begin = 0;              ///< bytes in front of its body
  std::uint64_t header_bytes = 0;            ///< 32, or 0: the body has no header
  std::uint64_t values_end = 0;              ///< bytes in front of what is behind its values
  std::uint64_t index_begin = 0;             ///< bytes in front of its coded indices
  std::uint64_t universe = 0;                ///< of the coded indices, those that fill up included
  std::uint64_t word = 0;                    ///< number of its step word
  PhiloxKey key = {};                        ///< of a drawn set
  std::array<std::uint64_t, 4> header = {};  ///< what its body begins with

  [[nodiscard]] constexpr std::uint64_t capacity() const noexcept { return header[0]; }
  [[nodiscard]] constexpr std::uint64_t index_bytes() const noexcept { return header[2]; }
  /// 0: the set is drawn, its indices do not travel.
  [[nodiscard]] constexpr std::uint32_t index_form() const noexcept {
    return static_cast<std::uint32_t>(header[3]);
  }
  [[nodiscard]] constexpr std::uint64_t num_units() const noexcept {
    return num_elements / granularity + (num_elements % granularity != 0 ? 1 : 0);
  }
};

/// Room for what is chosen, of all segments.
struct ChosenArrays {
  std::uint32_t* indices = nullptr;
  float* values = nullptr;
};

/// Who chooses: topk(), threshold(), block_topk() or, behind compensate(), randomk() and take().
/// ctx.piece_word[word] is k, the threshold (a float in the low half), or the step of the draw.
enum class HeldRule : std::uint8_t { topk, threshold, block_l2, block_linf, randomk };

/// Chooses from each segment. The room that is left is filled with indices from num_units() on and
/// with zeros; header and coded indices go to the body, indices and values to `chosen`; counts are
/// added to the words.
using SelectManyFn = Flags(ExecContext const&, std::span<SparseSegment const>, HeldRule,
                           EncodedArrays const&, ChosenArrays const&) noexcept;
/// residual at the chosen elements += lost, which lies as the values do.
using PutBackManyFn = void(ExecContext const&, std::span<SparseSegment const>,
                           std::uint32_t const* indices, float const* lost,
                           float* residual) noexcept;
/// scatter_add() of values at the indices that the bodies hold, or that are drawn once more;
/// is_first is not looked at. False if a body is not laid out as planned or its indices are not
/// ascending ones.
using SparseAddManyFn = bool(ExecContext const&, std::span<SparseSegment const>,
                             DecodedArrays const&, float const* values) noexcept;

#define GRADSIEVE_KERNELS_DECLARED_HERE \
  SelectManyFn select_many;             \
  PutBackManyFn put_back_many;          \
  SparseAddManyFn sparse_add_many

namespace ref {
GRADSIEVE_KERNELS_DECLARED_HERE;
}
namespace cpu {
GRADSIEVE_KERNELS_DECLARED_HERE;
}
namespace cuda {
GRADSIEVE_KERNELS_DECLARED_HERE;
}
GRADSIEVE_KERNELS_DECLARED_HERE;
#undef GRADSIEVE_KERNELS_DECLARED_HERE

}  // namespace gradsieve::kernels
