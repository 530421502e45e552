// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels that select need of a workspace, known without a CUDA compiler.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gradsieve/memory.hpp"

namespace gradsieve::kernels::cuda {

inline constexpr std::uint64_t kItemsPerTile = 4096;
inline constexpr std::size_t kTileRecordBytes = 32;
inline constexpr std::size_t kStateBytes = 256;
inline constexpr std::size_t kCountBytes = 2048 * sizeof(std::uint32_t);

[[nodiscard]] constexpr std::uint64_t num_tiles_of(std::uint64_t num_items) noexcept {
  return num_items / kItemsPerTile + (num_items % kItemsPerTile != 0 ? 1 : 0);
}

[[nodiscard]] constexpr std::size_t select_bytes(std::uint64_t num_items) noexcept {
  return Workspace::padded(kStateBytes) + Workspace::padded(kCountBytes) +
         Workspace::padded(static_cast<std::size_t>(num_tiles_of(num_items)) * kTileRecordBytes);
}

/// How many elements top-k samples; 0: the exact search alone is as fast.
[[nodiscard]] constexpr std::uint64_t num_topk_samples(std::uint64_t num_elements) noexcept {
  if (num_elements < 2 * kItemsPerTile) return 0;
  return std::clamp<std::uint64_t>(std::bit_floor(num_elements >> 9), 512, 2048);
}

[[nodiscard]] constexpr double sample_density(std::uint64_t k,
                                              std::uint64_t num_elements) noexcept {
  return static_cast<double>(k) / static_cast<double>(num_elements);
}

/// Room for the candidates of at most k chosen elements.
[[nodiscard]] inline std::uint64_t topk_capacity(std::uint64_t num_elements,
                                                 std::uint64_t k) noexcept {
  std::uint64_t const num_samples = num_topk_samples(num_elements);
  if (num_samples == 0) return 0;
  double const density = sample_density(k, num_elements);
  double const samples = static_cast<double>(num_samples);
  double const rank =
      std::min(samples * density + 4 * std::sqrt(samples * density * (1 - density)) + 4, samples);
  double const most =
      static_cast<double>(num_elements) / samples * (rank + 5 * std::sqrt(rank) + 4);
  return std::min(num_elements, static_cast<std::uint64_t>(most) + kItemsPerTile);
}

[[nodiscard]] inline std::size_t topk_bytes(std::uint64_t num_elements, std::uint64_t k) noexcept {
  return select_bytes(num_elements) +
         2 * Workspace::padded(static_cast<std::size_t>(topk_capacity(num_elements, k)) * 4);
}

[[nodiscard]] constexpr std::size_t block_topk_bytes(std::uint64_t num_elements,
                                                     std::uint64_t block_elements) noexcept {
  std::uint64_t const num_blocks =
      num_elements / block_elements + (num_elements % block_elements != 0 ? 1 : 0);
  return select_bytes(num_blocks) +
         Workspace::padded(static_cast<std::size_t>(num_blocks) * sizeof(std::uint64_t));
}

}  // namespace gradsieve::kernels::cuda
