// SPDX-License-Identifier: Apache-2.0
// Ranges for NVIDIA's profilers, in the domain "gradsieve". Nothing where they were not built in;
// a comparison where no profiler listens.
#pragma once

#include <cstdint>

namespace gradsieve {

#ifdef GRADSIEVE_HAVE_NVTX
/// `payload` stands beside the name: the bucket.
void nvtx_push(char const* name, std::uint64_t payload) noexcept;
void nvtx_pop() noexcept;
#else
inline void nvtx_push(char const*, std::uint64_t) noexcept {}
inline void nvtx_pop() noexcept {}
#endif

}  // namespace gradsieve
