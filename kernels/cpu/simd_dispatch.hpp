// SPDX-License-Identifier: Apache-2.0
// How a cpu/NAME.cpp reaches its NAME.simd.cpp, and how it cuts work for the threads.
#pragma once

#include <cstdint>

#include "gradsieve/context.hpp"

#include "kernels/cpu/per_target.hpp"

namespace gradsieve::kernels::cpu {

/// Elements per chunk of work: small enough for a second-level cache, large enough that handing a
/// chunk out costs nothing.
inline constexpr std::uint64_t kGrainElements = 32768;

#if defined(__x86_64__)
template <typename Function>
[[nodiscard]] Function* pick_target(Function* portable, Function* avx2, Function* avx512) noexcept {
  switch (simd_target()) {
    case SimdTarget::avx512:
      return avx512;
    case SimdTarget::avx2:
      return avx2;
    case SimdTarget::portable:
      return portable;
  }
  return portable;
}
/// The definition of a GRADSIEVE_PER_TARGET function that this machine is to run. Ask once per
/// call of a kernel, not once per block.
#define GRADSIEVE_PICK(function) \
  ::gradsieve::kernels::cpu::pick_target(&portable::function, &avx2::function, &avx512::function)
#else
#define GRADSIEVE_PICK(function) (&portable::function)
#endif

/// body(begin, end) for the chunks of [0, count), on the threads of the context if it has any.
template <typename Body>
void for_chunks(ExecContext const& ctx, std::uint64_t count, std::uint64_t grain,
                Body const& body) noexcept {
  if (ctx.threads != nullptr && count > grain) {
    ctx.threads->parallel_for(count, grain, body);
    return;
  }
  for (std::uint64_t begin = 0; begin < count; begin += grain) {
    body(begin, count - begin < grain ? count : begin + grain);
  }
}

[[nodiscard]] inline bool has_helpers(ExecContext const& ctx) noexcept {
  return ctx.threads != nullptr && ctx.threads->num_threads() > 1;
}

}  // namespace gradsieve::kernels::cpu
