// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/ops.hpp"
#include "tests/support/cpu_variants.hpp"
#include "tests/support/gradient_shapes.hpp"
#include "tests/support/guarded.hpp"

namespace gradsieve::kernels {
namespace {

using gradsieve::testing::CaseDraw;
using gradsieve::testing::for_each_cpu_variant;
using gradsieve::testing::Guarded;
using gradsieve::testing::kAllShapes;
using gradsieve::testing::kElementCounts;
using gradsieve::testing::make_gradient;
using gradsieve::testing::same_bits;
using gradsieve::testing::Shape;

struct Case {
  std::size_t num_elements;
  std::uint64_t block_elements;
  Shape shape;
  bool has_residual;
  bool in_place;
  std::size_t offset_elements;
  DType dtype;
  float carry;

  std::size_t num_blocks() const { return (num_elements + block_elements - 1) / block_elements; }
  std::size_t plane_bytes() const { return (num_elements + 7) / 8; }
};

std::ostream& operator<<(std::ostream& out, Case const& c) {
  return out << c.num_elements << " elements in blocks of " << c.block_elements << ", "
             << shape_name(c.shape) << (c.has_residual ? ", residual" : "")
             << (c.in_place ? " in place" : "") << ", offset " << c.offset_elements << ", "
             << dtype_name(c.dtype) << ", carry " << c.carry;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (std::size_t const num_elements : kElementCounts) {
    // 5000: a block of more than one partial sum, the last of them short.
    for (std::uint64_t const block_elements :
         {1U, 3U, 12U, 64U, 256U, 1024U, 4096U, 5000U, 1U << 20}) {
      for (bool const in_place : {false, true}) {
        CaseDraw draw(cases.size());
        cases.push_back({num_elements, block_elements, draw.pick(kAllShapes),
                         in_place || draw.pick(std::array{false, true}), in_place,
                         draw.pick(std::array<std::size_t, 4>{0, 1, 3, 5}),
                         draw.pick(std::array{DType::f32, DType::f16, DType::bf16}),
                         draw.pick(std::array{1.0F, 0.75F, 1024.0F})});
      }
    }
  }
  return cases;
}

std::vector<float> finite_gradient(Case const& c) {
  auto gradient = make_gradient(c.shape, c.num_elements, c.num_elements);
  for (float& x : gradient) {
    if (!std::isfinite(x)) x = -0.5F;
  }
  return gradient;
}

struct Result {
  explicit Result(Case const& c)
      : signs(c.plane_bytes(), c.offset_elements),
        zeros(c.plane_bytes(), c.offset_elements),
        scales(c.num_blocks(), c.offset_elements * sizeof(float)),
        residual(c.num_elements, c.offset_elements * sizeof(float)) {
    std::ranges::fill(signs.span(), std::byte{0xff});
    std::ranges::fill(zeros.span(), std::byte{0xff});
  }

  Guarded<std::byte> signs;
  Guarded<std::byte> zeros;
  Guarded<float> scales;
  Guarded<float> residual;
  std::uint32_t any_zero = 0;
  Flags flags = 0;
};

void expect_same(Result& actual, Result& expected) {
  EXPECT_TRUE(same_bits(actual.signs.span(), expected.signs.span())) << "signs";
  EXPECT_TRUE(same_bits(actual.zeros.span(), expected.zeros.span())) << "zeros";
  EXPECT_TRUE(same_bits(actual.scales.span(), expected.scales.span())) << "scales";
  EXPECT_TRUE(same_bits(actual.residual.span(), expected.residual.span())) << "residual";
  EXPECT_EQ(actual.any_zero, expected.any_zero);
  EXPECT_EQ(actual.flags, expected.flags);
  EXPECT_TRUE(actual.signs.intact() && actual.zeros.intact() && actual.scales.intact() &&
              actual.residual.intact());
}

TEST(Sign, IsEquivalentToRef) {
  for (Case const& c : all_cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    Guarded<float> apart(finite_gradient(c), c.offset_elements * sizeof(float));
    auto const run = [&](SignFn& kernel, ExecContext const& ctx) {
      Result result(c);
      std::span<float> corrected = apart.span();
      std::span<float> residual = result.residual.span();
      if (!c.has_residual) residual = {};
      if (c.in_place) {
        std::ranges::copy(apart.span(), residual.begin());
        corrected = residual;
      }
      kernel(ctx, corrected, c.block_elements, result.signs.span(), result.zeros.span(),
             result.scales.span(), residual, &result.any_zero);
      return result;
    };

    Result expected = run(ref::sign, {});

    for_each_cpu_variant([&](ExecContext const& ctx) {
      Result actual = run(cpu::sign, ctx);
      expect_same(actual, expected);
    });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(SignFused, IsEquivalentToRef) {
  for (Case const& c : all_cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    Guarded<std::byte> gradient(c.num_elements * size_of(c.dtype),
                                c.offset_elements * size_of(c.dtype));
    TensorView const elements(gradient.span().data(), c.num_elements, c.dtype);
    ref::narrow({}, make_gradient(c.shape, c.num_elements, c.num_elements + 1), true, elements);
    Guarded<float> carried(make_gradient(Shape::heavy_tailed, c.num_elements, 9),
                           c.offset_elements * sizeof(float));
    auto const run = [&](SignFusedFn& kernel, ExecContext const& ctx) {
      Result result(c);
      ResidualView residual{{}, result.residual.span(), c.carry};
      if (c.has_residual) residual.in = carried.span();
      if (c.in_place) {
        std::ranges::copy(carried.span(), result.residual.span().begin());
        residual.in = result.residual.span();
      }
      result.flags = kernel(ctx, elements, residual, c.block_elements, result.signs.span(),
                            result.zeros.span(), result.scales.span(), &result.any_zero);
      return result;
    };

    Result expected = run(ref::sign_fused, {});

    for_each_cpu_variant([&](ExecContext const& ctx) {
      Result actual = run(cpu::sign_fused, ctx);
      expect_same(actual, expected);
    });
    if (::testing::Test::HasFailure()) return;
  }
}

// Any bits are planes; a sign bit at a zero comes from a damaged payload only.
TEST(SignAdd, IsEquivalentToRef) {
  for (Case const& c : all_cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    Guarded<std::byte> planes(2 * c.plane_bytes(), c.offset_elements);
    std::uint64_t i = 0;
    for (std::byte& byte : planes.span()) byte = std::byte(mix64(++i) >> 56);
    Guarded<std::byte> scales(c.num_blocks() * sizeof(float), c.offset_elements);
    for (std::size_t block = 0; block < c.num_blocks(); ++block) {
      float const scale = 0.01F * static_cast<float>(block % 7);
      std::memcpy(scales.span().data() + block * sizeof scale, &scale, sizeof scale);
    }
    std::byte const* const zeros = c.in_place ? planes.span().data() + c.plane_bytes() : nullptr;
    auto const start = make_gradient(c.shape, c.num_elements, 5);
    auto const run = [&](SignAddFn& kernel, ExecContext const& ctx) {
      Guarded<float> accumulator(start, c.offset_elements * sizeof(float));
      kernel(ctx, planes.span().data(), zeros, scales.span().data(), c.block_elements, -1.0F / 3,
             accumulator.span());
      EXPECT_TRUE(accumulator.intact());
      return accumulator;
    };

    auto expected = run(ref::sign_add, {});

    for_each_cpu_variant([&](ExecContext const& ctx) {
      auto actual = run(cpu::sign_add, ctx);
      EXPECT_TRUE(same_bits(actual.span(), expected.span()));
    });
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace gradsieve::kernels
