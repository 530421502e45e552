// SPDX-License-Identifier: Apache-2.0
// The passes of selection over one block of at most kPassElements. Magnitudes are the bits of a
// float without its sign; thresholds are magnitudes, and kAboveAll is one that none reaches.
#pragma once

#include <cstdint>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/per_target.hpp"

namespace gradsieve::kernels::cpu {

inline constexpr std::uint32_t kPassElements = 4096;
/// What is written behind the last candidate: arrays for `count` need count + kSelectSlack. As much
/// is read behind the values given to other functions.
inline constexpr std::uint32_t kSelectSlack = 64;
inline constexpr std::uint32_t kAboveAll = 0x80000000U;
/// Longer arrays are out of the caches before anybody reads them again.
inline constexpr std::uint64_t kStreamedFromElements = std::uint64_t{1} << 22;

/// Whether a pass from one residual to another need not read the lines that it writes.
[[nodiscard]] inline bool streams_residual(float const* in, float const* out,
                                           std::uint64_t num_elements) {
  return in != nullptr && in != out && num_elements >= kStreamedFromElements;
}

struct SelectPass {
  void const* gradient;      ///< null: residual_out holds c already
  float const* residual_in;  ///< null: zeros; may equal residual_out
  float* residual_out;
  float carry;
  ElementType type;
  std::uint32_t count;
  std::uint32_t first_index;  ///< of element 0
  std::uint32_t keep_from;    ///< |c| at least this: index and c become a candidate
  std::uint32_t zero_from;    ///< |c| at least this: residual_out gets +0 in place of c
  bool streams;               ///< residual_out goes past the caches, if it is aligned for that
};

/// Writes residual_out and the candidates, ascending; returns their number. Sets *non_finite if a
/// sum was not finite.
GRADSIEVE_PER_TARGET(std::uint32_t select_block(SelectPass const& pass, std::uint32_t* indices,
                                                float* values, std::uint32_t* non_finite))

/// out ← the magnitudes of the values that are below `limit`, in order; returns their number.
GRADSIEVE_PER_TARGET(std::uint32_t magnitudes_below(float const* values, std::uint32_t count,
                                                    std::uint32_t limit, std::uint32_t* out))

/// Copies the pairs with |value| of at least `from`, in order; returns their number.
GRADSIEVE_PER_TARGET(std::uint32_t copy_from(std::uint32_t const* indices, float const* values,
                                             std::uint32_t count, std::uint32_t from,
                                             std::uint32_t* indices_out, float* values_out))

/// x[index] ← restore ? value : +0 for the pairs with |value| in [from, to).
GRADSIEVE_PER_TARGET(void mend(std::uint32_t const* indices, float const* values,
                               std::uint32_t count, std::uint32_t from, std::uint32_t to,
                               bool restore, float* x))

/// How many |value| are at least `from`.
GRADSIEVE_PER_TARGET(std::uint32_t count_from(float const* values, std::uint64_t count,
                                              std::uint32_t from))

/// counts[(|value| − low) >> shift] goes up by one for each value where that is below 2048.
GRADSIEVE_PER_TARGET(void count_magnitudes(float const* values, std::uint64_t count,
                                           std::uint32_t low, int shift, std::uint32_t* counts))

/// magnitudes ← |c| at the positions.
GRADSIEVE_PER_TARGET(void sample_magnitudes(void const* gradient, ElementType type,
                                            float const* residual_in, float carry,
                                            std::uint32_t const* positions, std::uint32_t count,
                                            std::uint32_t* magnitudes))

}  // namespace gradsieve::kernels::cpu
