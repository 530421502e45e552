// SPDX-License-Identifier: Apache-2.0
// The ways in which one and the same kernel call is run: instruction set, threads, alignment.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "gradsieve/context.hpp"
#include "gradsieve/memory.hpp"
#include "gradsieve/vocabulary.hpp"

#include "core/philox.hpp"
#include "kernels/ops.hpp"
#include "tests/support/gradient_shapes.hpp"

namespace gradsieve::testing {

/// Around the borders of vectors, pieces, blocks and chunks of work.
inline constexpr std::size_t kElementCounts[] = {
    0, 1, 7, 31, 32, 33, 255, 1025, 4095, 4097, 8191, 32767, 32768, 32769, 65537, 300001};

inline constexpr int kThreadCounts[] = {1, 2, 3, 7};

/// make_gradient(), made once: drawing Gaussians takes longer than what is tested with them.
[[nodiscard]] inline std::vector<float> const& kept_gradient(Shape shape, std::size_t num_elements,
                                                             std::uint64_t seed = 1) {
  static std::map<std::tuple<Shape, std::size_t, std::uint64_t>, std::vector<float>> kept;
  auto const [at, is_new] = kept.try_emplace({shape, num_elements, seed});
  if (is_new) at->second = make_gradient(shape, num_elements, seed);
  return at->second;
}

/// One of kThreadCounts pools; made once.
[[nodiscard]] inline ThreadPool& pool_of(int num_threads) {
  static ThreadPool pools[] = {ThreadPool(1), ThreadPool(2), ThreadPool(3), ThreadPool(7)};
  auto const* const at = std::find(std::begin(kThreadCounts), std::end(kThreadCounts), num_threads);
  return pools[at - std::begin(kThreadCounts)];
}

/// Forces an instruction set for the life of this object.
class ForcedTarget {
 public:
  explicit ForcedTarget(SimdTarget target) : before_(simd_target()) { force_simd_target(target); }
  ~ForcedTarget() { force_simd_target(before_); }
  ForcedTarget(ForcedTarget const&) = delete;
  ForcedTarget& operator=(ForcedTarget const&) = delete;

 private:
  SimdTarget before_;
};

/// How one call is run. Members are drawn, so that few calls meet many combinations.
struct Way {
  SimdTarget target = SimdTarget::portable;
  int num_threads = 1;
  std::size_t offset_elements = 0;  ///< from an address that is a multiple of 256
  bool in_place = false;            ///< residual.out is residual.in

  [[nodiscard]] std::string text() const {
    return std::string(simd_target_name(target)) + ", " + std::to_string(num_threads) +
           " threads, offset " + std::to_string(offset_elements) + (in_place ? ", in place" : "");
  }
};

/// For each instruction set of this machine two ways, always the same for the same `draw`.
[[nodiscard]] inline std::vector<Way> ways_of(std::uint64_t draw) {
  std::vector<Way> ways;
  for (SimdTarget const target : supported_simd_targets()) {
    for (std::uint64_t i = 0; i < 2; ++i) {
      std::uint64_t const bits = mix64(mix64(draw) + 16 * static_cast<std::uint64_t>(target) + i);
      ways.push_back({target, kThreadCounts[bits % 4], (bits >> 8) % 16, (bits >> 16) % 2 == 0});
    }
  }
  return ways;
}

[[nodiscard]] inline ExecContext context_of(Way const& way, Workspace* workspace = nullptr) {
  ExecContext ctx;
  ctx.threads = &pool_of(way.num_threads);
  ctx.workspace = workspace;
  return ctx;
}

/// Every bit equal; names the first element that is not.
template <typename T>
[[nodiscard]] ::testing::AssertionResult same_bits(std::span<T const> expected,
                                                   std::span<T const> actual) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
  if (expected.size() != actual.size()) {
    return ::testing::AssertionFailure()
           << "expected " << expected.size() << " elements, not " << actual.size();
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    auto const a = std::bit_cast<Bits>(expected[i]);
    auto const b = std::bit_cast<Bits>(actual[i]);
    if (a != b) {
      return ::testing::AssertionFailure() << "element " << i << " of " << expected.size()
                                           << std::hex << ": expected bits " << a << ", not " << b;
    }
  }
  return ::testing::AssertionSuccess();
}
template <typename T>
[[nodiscard]] ::testing::AssertionResult same_bits(std::vector<T> const& expected,
                                                   std::span<T> actual) {
  return same_bits<T>(std::span<T const>(expected), std::span<T const>(actual));
}

/// The bytes of a gradient of this type, rounded from f32.
[[nodiscard]] inline std::vector<std::byte> stored_as(DType dtype,
                                                      std::vector<float> const& values) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  if (dtype == DType::f32) {  // as it is, with its NaN
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    kernels::ref::narrow({}, values, false, {bytes.data(), values.size(), dtype});
  }
  return bytes;
}

[[nodiscard]] inline std::string param_name(::testing::TestParamInfo<Shape> const& info) {
  return std::string(shape_name(info.param));
}

}  // namespace gradsieve::testing
