// SPDX-License-Identifier: Apache-2.0
// What a spec costs in memory, by promise 4's two kinds of rollback.
#pragma once

#include <cstdint>

#include "gradsieve/registry.hpp"

namespace gradsieve::bindings {

/// What a hook holds for a tensor, copy by copy.
struct TensorMemory {
  std::uint64_t payloads = 0;
  std::uint64_t residual = 0;  ///< one copy
  std::uint64_t slots = 0;     ///< two copies, always
  std::uint64_t workspace = 0;

  [[nodiscard]] std::uint64_t state_merge() const noexcept { return residual + slots; }
  [[nodiscard]] std::uint64_t state_exact() const noexcept { return 2 * residual + slots; }
};

[[nodiscard]] TensorMemory memory_of(Chain const& chain, TensorInfo const& tensor);

}  // namespace gradsieve::bindings
