// SPDX-License-Identifier: Apache-2.0
// Several passes over an array for the memory traffic of one: they take turns on parts that stay in
// the cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gradsieve/context.hpp"
#include "gradsieve/selection.hpp"

namespace gradsieve {

/// Elements that one thread's second-level cache holds with all that is made of them.
inline constexpr std::uint64_t kCachedElements = 65536;

/// The residual of the elements [begin, begin + count).
[[nodiscard]] inline ResidualView part_of(ResidualView residual, std::uint64_t begin,
                                          std::uint64_t count) noexcept {
  auto const at = static_cast<std::size_t>(begin);
  auto const size = static_cast<std::size_t>(count);
  if (!residual.in.empty()) residual.in = residual.in.subspan(at, size);
  residual.out = residual.out.subspan(at, size);
  return residual;
}

/// body(begin, count) for one part after another; all but the last are multiples of `multiple`.
template <typename Body>
void for_cached_parts(ExecContext const& ctx, std::uint64_t num_elements, std::uint64_t multiple,
                      Body const& body) noexcept {
  auto const num_threads =
      static_cast<std::uint64_t>(ctx.threads == nullptr ? 1 : ctx.threads->num_threads());
  std::uint64_t const least = std::max(kCachedElements * num_threads, multiple);
  // A device has no use for parts: its kernels are asynchronous, and each fills it.
  std::uint64_t const part = ctx.backend == Backend::cuda ? num_elements : least - least % multiple;
  for (std::uint64_t begin = 0; begin < num_elements; begin += part) {
    body(begin, std::min(part, num_elements - begin));
  }
}

}  // namespace gradsieve
