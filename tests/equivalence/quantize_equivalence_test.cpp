// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
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

enum class Residual : std::uint8_t { none, apart, in_place };

struct Case {
  std::size_t num_elements;
  std::uint64_t block_elements;
  int bits;
  Rounding rounding;
  Shape shape;
  DType dtype;
  Residual residual;
  float carry;
  std::size_t offset_elements;  // of every array from an aligned address
  std::uint64_t first_element;

  std::size_t num_blocks() const { return (num_elements + block_elements - 1) / block_elements; }
  std::size_t code_bytes() const { return bits == 8 ? num_elements : (num_elements + 1) / 2; }
  RoundingKey key() const { return {{0x12345678, 0x9abcdef0}, 77, first_element}; }
};

std::ostream& operator<<(std::ostream& out, Case const& c) {
  return out << c.num_elements << " elements in blocks of " << c.block_elements << ", " << c.bits
             << " bits, " << (c.rounding == Rounding::nearest ? "nearest" : "stochastic") << ", "
             << shape_name(c.shape) << ", " << dtype_name(c.dtype) << ", residual "
             << static_cast<int>(c.residual) << ", carry " << c.carry << ", offset "
             << c.offset_elements << ", first element " << c.first_element;
}

// All counts, blocks, widths and roundings; what else there is, is drawn.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (std::size_t const num_elements : kElementCounts) {
    for (std::uint64_t const block_elements : {1U, 3U, 5U, 64U, 256U, 1024U, 4096U}) {
      for (int const bits : {8, 4}) {
        for (Rounding const rounding : {Rounding::nearest, Rounding::stochastic}) {
          CaseDraw draw(cases.size());
          cases.push_back(
              {num_elements, block_elements, bits, rounding, draw.pick(kAllShapes),
               draw.pick(std::array{DType::f32, DType::f16, DType::bf16}),
               draw.pick(std::array{Residual::none, Residual::apart, Residual::in_place}),
               draw.pick(std::array{1.0F, 0.75F, 1024.0F}),
               draw.pick(std::array<std::size_t, 4>{0, 1, 3, 5}),
               draw.pick(std::array<std::uint64_t, 4>{0, 5, 4096, (1ULL << 35) - 21})});
        }
      }
    }
  }
  return cases;
}

// A gradient of the case's type: halves are what narrow makes of the shape.
Guarded<std::byte> gradient_of(Case const& c) {
  auto const values = make_gradient(c.shape, c.num_elements, c.num_elements + 1);
  std::size_t const element_bytes = size_of(c.dtype);
  Guarded<std::byte> gradient(c.num_elements * element_bytes, c.offset_elements * element_bytes);
  ref::narrow({}, values, true, {gradient.span().data(), c.num_elements, c.dtype});
  return gradient;
}

struct Result {
  explicit Result(Case const& c)
      : codes(c.code_bytes(), c.offset_elements),
        scales(c.num_blocks(), c.offset_elements * sizeof(float)),
        residual(c.num_elements, c.offset_elements * sizeof(float)) {
    std::ranges::fill(codes.span(), std::byte{0xff});
  }

  Guarded<std::byte> codes;
  Guarded<float> scales;
  Guarded<float> residual;
  Flags flags = 0;
};

void expect_same(Result& actual, Result& expected) {
  EXPECT_TRUE(same_bits(actual.codes.span(), expected.codes.span())) << "codes";
  EXPECT_TRUE(same_bits(actual.scales.span(), expected.scales.span())) << "scales";
  EXPECT_TRUE(same_bits(actual.residual.span(), expected.residual.span())) << "residual";
  EXPECT_EQ(actual.flags, expected.flags);
  EXPECT_TRUE(actual.codes.intact() && actual.scales.intact() && actual.residual.intact());
}

TEST(QuantizeFused, IsEquivalentToRef) {
  for (Case const& c : all_cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    Guarded<std::byte> gradient = gradient_of(c);
    Guarded<float> carried(make_gradient(Shape::heavy_tailed, c.num_elements, 9),
                           c.offset_elements * sizeof(float));
    auto const run = [&](QuantizeFusedFn& kernel, ExecContext const& ctx) {
      Result result(c);
      ResidualView residual{{}, result.residual.span(), c.carry};
      if (c.residual == Residual::apart) residual.in = carried.span();
      if (c.residual == Residual::in_place) {
        std::ranges::copy(carried.span(), result.residual.span().begin());
        residual.in = result.residual.span();
      }
      result.flags =
          kernel(ctx, {gradient.span().data(), c.num_elements, c.dtype}, residual, c.bits,
                 c.block_elements, c.rounding, c.key(), result.codes.span(), result.scales.span());
      return result;
    };

    Result expected = run(ref::quantize_fused, {});

    for_each_cpu_variant([&](ExecContext const& ctx) {
      Result actual = run(cpu::quantize_fused, ctx);
      expect_same(actual, expected);
    });
    if (::testing::Test::HasFailure()) return;
  }
}

// What compensate leaves: finite numbers.
std::vector<float> corrected_of(Case const& c) {
  auto corrected = make_gradient(c.shape, c.num_elements, 4);
  for (float& x : corrected) {
    if (!std::isfinite(x)) x = 0.5F;
  }
  return corrected;
}

TEST(Quantize, IsEquivalentToRef) {
  for (Case const& c : all_cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    Guarded<float> apart(corrected_of(c), c.offset_elements * sizeof(float));
    auto const run = [&](QuantizeFn& kernel, ExecContext const& ctx) {
      Result result(c);
      std::span<float> corrected = apart.span();
      std::span<float> residual = result.residual.span();
      if (c.residual == Residual::none) residual = {};
      if (c.residual == Residual::in_place) {
        std::ranges::copy(apart.span(), residual.begin());
        corrected = residual;
      }
      kernel(ctx, corrected, c.bits, c.block_elements, c.rounding, c.key(), result.codes.span(),
             result.scales.span(), residual);
      return result;
    };

    Result expected = run(ref::quantize, {});

    for_each_cpu_variant([&](ExecContext const& ctx) {
      Result actual = run(cpu::quantize, ctx);
      expect_same(actual, expected);
    });
    if (::testing::Test::HasFailure()) return;
  }
}

// The scale is raised or lowered by one float where its top level misses the maximum; any exponent
// and any mantissa of the maximum may need that.
TEST(QuantizeOfAnyFiniteFloat, IsEquivalentToRef) {
  constexpr std::size_t kCount = 1 << 15;
  std::vector<float> corrected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    corrected[i] = std::bit_cast<float>(static_cast<std::uint32_t>(mix64(i)));
    if (!std::isfinite(corrected[i])) corrected[i] = std::numeric_limits<float>::max();
    if (i % 64 == 1) corrected[i] = -std::numeric_limits<float>::max();
  }
  for (std::uint64_t const block_elements : {1U, 2U}) {
    for (int const bits : {8, 4}) {
      for (Rounding const rounding : {Rounding::nearest, Rounding::stochastic}) {
        Case const c = {kCount,     block_elements,  bits, rounding, Shape::gaussian,
                        DType::f32, Residual::apart, 1.0F, 0,        0};
        SCOPED_TRACE(::testing::PrintToString(c));
        auto const run = [&](QuantizeFn& kernel, ExecContext const& ctx) {
          Result result(c);
          kernel(ctx, corrected, bits, block_elements, rounding, c.key(), result.codes.span(),
                 result.scales.span(), result.residual.span());
          return result;
        };

        Result expected = run(ref::quantize, {});

        for_each_cpu_variant([&](ExecContext const& ctx) {
          Result actual = run(cpu::quantize, ctx);
          expect_same(actual, expected);
        });
      }
    }
  }
}

// Any bytes are codes: −128 and −8 come from a damaged payload only.
TEST(DequantizeAdd, IsEquivalentToRef) {
  for (Case const& c : all_cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    Guarded<std::byte> codes(c.code_bytes(), c.offset_elements);
    for (std::size_t i = 0; i < c.code_bytes(); ++i) codes.span()[i] = std::byte(mix64(i) >> 56);
    Guarded<std::byte> scales(c.num_blocks() * sizeof(float), c.offset_elements);
    for (std::size_t block = 0; block < c.num_blocks(); ++block) {
      float const scale =
          c.shape == Shape::one_spike ? 3e38F : 0.01F * static_cast<float>(block % 7);
      std::memcpy(scales.span().data() + block * sizeof scale, &scale, sizeof scale);
    }
    auto const start = make_gradient(c.shape, c.num_elements, 5);
    auto const run = [&](DequantizeAddFn& kernel, ExecContext const& ctx) {
      Guarded<float> accumulator(start, c.offset_elements * sizeof(float));
      kernel(ctx, codes.span(), scales.span().data(), c.bits, c.block_elements, -c.carry / 3,
             accumulator.span());
      EXPECT_TRUE(accumulator.intact());
      return accumulator;
    };

    auto expected = run(ref::dequantize_add, {});

    for_each_cpu_variant([&](ExecContext const& ctx) {
      auto actual = run(cpu::dequantize_add, ctx);
      EXPECT_TRUE(same_bits(actual.span(), expected.span()));
    });
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace gradsieve::kernels
