// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/ops.hpp"
#include "tests/support/cpu_variants.hpp"
#include "tests/support/gradient_shapes.hpp"
#include "tests/support/guarded.hpp"

namespace gradsieve::kernels {
namespace {

using gradsieve::testing::for_each_cpu_variant;
using gradsieve::testing::Guarded;
using gradsieve::testing::kAllShapes;
using gradsieve::testing::kElementCounts;
using gradsieve::testing::make_gradient;
using gradsieve::testing::same_bits;
using gradsieve::testing::Shape;

constexpr std::array kDTypes = {DType::f32, DType::f16, DType::bf16};

// Every bit pattern of the type's size, in order, or as many as there is room for.
Guarded<std::byte> counting_bits(DType dtype, std::size_t count, std::size_t offset_elements) {
  Guarded<std::byte> bytes(count * size_of(dtype), offset_elements * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t const bits =
        dtype == DType::f32 ? static_cast<std::uint32_t>(mix64(i)) : static_cast<std::uint32_t>(i);
    std::memcpy(bytes.span().data() + i * size_of(dtype), &bits, size_of(dtype));
  }
  return bytes;
}

TEST(Widen, IsEquivalentToRef) {
  for (DType const dtype : kDTypes) {
    for (std::size_t const count : kElementCounts) {
      std::size_t const offset = count % 4;
      SCOPED_TRACE(std::string(dtype_name(dtype)) + ", " + std::to_string(count));
      Guarded<std::byte> halves = counting_bits(dtype, count, offset);
      ConstTensorView const values(halves.span().data(), count, dtype);
      Guarded<float> expected(count);
      ref::widen({}, values, expected.span());

      for_each_cpu_variant([&](ExecContext const& ctx) {
        Guarded<float> actual(count, offset * sizeof(float));
        cpu::widen(ctx, values, actual.span());
        EXPECT_TRUE(same_bits(actual.span(), expected.span()));
        EXPECT_TRUE(actual.intact());
      });
    }
  }
}

void expect_same_narrowing(std::span<float const> values, DType dtype, bool saturate) {
  std::size_t const offset = values.size() % 4 * size_of(dtype);
  Guarded<std::byte> expected(values.size() * size_of(dtype));
  ref::narrow({}, values, saturate, {expected.span().data(), values.size(), dtype});
  for_each_cpu_variant([&](ExecContext const& ctx) {
    Guarded<std::byte> actual(values.size() * size_of(dtype), offset);
    cpu::narrow(ctx, values, saturate, {actual.span().data(), values.size(), dtype});
    EXPECT_TRUE(same_bits(actual.span(), expected.span()));
    EXPECT_TRUE(actual.intact());
  });
}

TEST(Narrow, IsEquivalentToRef) {
  for (DType const dtype : kDTypes) {
    for (bool const saturate : {false, true}) {
      for (std::size_t const count : kElementCounts) {
        Shape const shape = kAllShapes[count % kAllShapes.size()];
        SCOPED_TRACE(std::string(dtype_name(dtype)) + ", " + std::to_string(count));
        expect_same_narrowing(make_gradient(shape, count), dtype, saturate);
      }
    }
  }
}

// Each half, the midpoint above it and the floats next to both.
TEST(NarrowAroundEveryHalf, IsEquivalentToRef) {
  for (DType const dtype : {DType::f16, DType::bf16}) {
    std::size_t constexpr kCount = 65536;
    Guarded<std::byte> halves = counting_bits(dtype, kCount, 0);
    std::vector<float> exact(kCount);
    ref::widen({}, {halves.span().data(), kCount, dtype}, exact);
    std::vector<float> values;
    for (std::size_t i = 0; i + 1 < kCount; ++i) {
      std::uint32_t const below = std::bit_cast<std::uint32_t>(exact[i]);
      std::uint32_t const above = std::bit_cast<std::uint32_t>(exact[i + 1]);
      std::uint32_t const middle = below + (above - below) / 2;
      for (std::uint32_t const bits :
           {below - 1, below, below + 1, middle - 1, middle, middle + 1}) {
        values.push_back(std::bit_cast<float>(bits));
      }
    }
    for (bool const saturate : {false, true}) expect_same_narrowing(values, dtype, saturate);
  }
}

TEST(AddScaled, IsEquivalentToRef) {
  for (DType const dtype : kDTypes) {
    for (std::size_t const count : kElementCounts) {
      Shape const shape = kAllShapes[(count + static_cast<std::size_t>(dtype)) % kAllShapes.size()];
      SCOPED_TRACE(std::string(dtype_name(dtype)) + ", " + std::to_string(count));
      std::size_t const offset = count % 4;
      Guarded<std::byte> halves = counting_bits(dtype, count, offset);
      ConstTensorView const values(halves.span().data(), count, dtype);
      std::vector<float> const start = make_gradient(shape, count);
      std::vector<float> expected = start;
      ref::add_scaled({}, values, 1.0F / 3, expected);

      for_each_cpu_variant([&](ExecContext const& ctx) {
        Guarded<float> actual(start, offset * sizeof(float));
        cpu::add_scaled(ctx, values, 1.0F / 3, actual.span());
        EXPECT_TRUE(same_bits(actual.span(), std::span(expected)));
        EXPECT_TRUE(actual.intact());
      });
    }
  }
}

// A fused multiply-add anywhere would show in one sum of a few.
TEST(AddScaledOfAMillionRandomNumbers, IsEquivalentToRef) {
  constexpr std::size_t kCount = 1'000'000;
  std::vector<float> const values = make_gradient(Shape::gaussian, kCount, 2);
  std::vector<float> const start = make_gradient(Shape::gaussian, kCount, 3);
  std::vector<float> expected = start;
  ref::add_scaled({}, std::span(values), 0.7F, expected);

  for_each_cpu_variant([&](ExecContext const& ctx) {
    std::vector<float> actual = start;
    cpu::add_scaled(ctx, std::span(values), 0.7F, actual);
    EXPECT_TRUE(same_bits(std::span(actual), std::span(expected)));
  });
}

}  // namespace
}  // namespace gradsieve::kernels
