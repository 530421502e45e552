// SPDX-License-Identifier: Apache-2.0
// What the selections of one backend need of a workspace; kernels::…_workspace_bytes() is enough
// for all that were built.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradsieve::kernels::cpu {

[[nodiscard]] std::size_t topk_bytes(std::uint64_t num_elements, std::uint64_t k) noexcept;
[[nodiscard]] std::size_t block_topk_bytes(std::uint64_t num_elements, std::uint64_t block_elements,
                                           std::uint64_t k) noexcept;

}  // namespace gradsieve::kernels::cpu
