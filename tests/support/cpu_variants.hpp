// SPDX-License-Identifier: Apache-2.0
// Every way the CPU kernels can run on this machine, and the comparison of their results with ref.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gradsieve/context.hpp"

#include "core/philox.hpp"

namespace gradsieve::testing {

/// Element counts around the borders of vectors, blocks and chunks.
inline constexpr std::array<std::size_t, 12> kElementCounts = {0,  1,  7,   8,    9,    31,
                                                               32, 33, 255, 1025, 4097, 65537};

/// Chooses the parameters of case i out of a cross product too large to run in full.
class CaseDraw {
 public:
  explicit CaseDraw(std::uint64_t index) : bits_(mix64(index + 1)) {}

  /// One of the options; the next call draws anew.
  template <typename T, std::size_t kCount>
  [[nodiscard]] T pick(std::array<T, kCount> const& options) {
    bits_ = mix64(bits_);
    return options[(bits_ >> 32) % kCount];
  }

 private:
  std::uint64_t bits_;
};

/// Runs body(ctx) for each instruction set that this machine has, with one thread and with 2, 3 or
/// 7: the next of these with each call.
template <typename Body>
void for_each_cpu_variant(Body const& body) {
  static std::array<ThreadPool, 3> pools{ThreadPool(2), ThreadPool(3), ThreadPool(7)};
  static std::size_t turn = 0;
  ThreadPool* const helpers = &pools[turn++ % pools.size()];
  SimdTarget const before = simd_target();
  for (SimdTarget const target : supported_simd_targets()) {
    force_simd_target(target);
    for (ThreadPool* const threads : {static_cast<ThreadPool*>(nullptr), helpers}) {
      int const num_threads = threads == nullptr ? 1 : threads->num_threads();
      SCOPED_TRACE(std::string(simd_target_name(target)) + ", " + std::to_string(num_threads) +
                   " threads");
      ExecContext ctx;
      ctx.threads = threads;
      body(ctx);
    }
  }
  force_simd_target(before);
}

/// Compares bytes, so that −0 is not +0 and a NaN is itself.
template <typename T>
[[nodiscard]] ::testing::AssertionResult same_bits(std::span<T> actual, std::span<T> expected) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << actual.size() << " elements, expected " << expected.size();
  }
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::memcmp(&actual[i], &expected[i], sizeof(T)) == 0) continue;
    return ::testing::AssertionFailure()
           << "element " << i << " is " << ::testing::PrintToString(actual[i]) << ", expected "
           << ::testing::PrintToString(expected[i]);
  }
  return ::testing::AssertionSuccess();
}

}  // namespace gradsieve::testing
