// SPDX-License-Identifier: Apache-2.0
// The kernels of error feedback, of sums and of indexed access: every bit as `ref` has it.
#include "tests/equivalence/kernel_ways.hpp"
#include "tests/support/guarded.hpp"

namespace gradsieve::testing {
namespace {

std::vector<float> const& finite_gradient(Shape shape, std::size_t num_elements,
                                          std::uint64_t seed) {
  return kept_gradient(is_finite_shape(shape) ? shape : Shape::gaussian, num_elements, seed);
}

std::vector<std::uint32_t> some_indices(std::uint64_t universe, std::uint64_t k) {
  std::vector<std::uint32_t> indices(k);
  kernels::ref::randomk({}, {1, 2}, 3, universe, indices);
  return indices;
}

class Feedback : public ::testing::TestWithParam<Shape> {};

TEST_P(Feedback, CompensateIsEquivalentToRef) {
  for (std::size_t const n : kElementCounts) {
    for (DType const dtype : {DType::f32, DType::f16, DType::bf16}) {
      std::uint64_t const draw = mix64(n) + static_cast<std::uint64_t>(dtype);
      auto const stored = stored_as(dtype, kept_gradient(GetParam(), n));
      auto const before = draw % 4 == 0 ? std::vector<float>{} : finite_gradient(GetParam(), n, 2);
      float const carry = draw % 2 == 0 ? 0.5F : 1.0F;
      std::vector<float> expected(n);
      auto const flags =
          kernels::ref::compensate({}, {stored.data(), n, dtype}, {before, expected, carry});
      for (Way const& way : ways_of(draw)) {
        ForcedTarget const forced(way.target);
        Guarded<std::byte> gradient(stored, way.offset_elements * size_of(dtype));
        Guarded<float> in(before, way.offset_elements * 4);
        Guarded<float> apart(n, way.offset_elements * 4);
        Guarded<float>& out = way.in_place && !before.empty() ? in : apart;

        auto const found = kernels::cpu::compensate(
            context_of(way), {gradient.span().data(), n, dtype}, {in.span(), out.span(), carry});

        SCOPED_TRACE(way.text() + ", " + std::string(dtype_name(dtype)));
        ASSERT_TRUE(same_bits(expected, out.span()));
        ASSERT_TRUE(out.intact());
        ASSERT_EQ(flags, found);
      }
    }
  }
}

TEST_P(Feedback, RetainIsEquivalentToRef) {
  for (std::size_t const n : kElementCounts) {
    auto const& decoded = kept_gradient(GetParam(), n);
    auto const& before = kept_gradient(GetParam(), n, 2);
    auto expected = before;
    kernels::ref::retain({}, decoded, expected);
    for (Way const& way : ways_of(n)) {
      ForcedTarget const forced(way.target);
      Guarded<float> residual(before, way.offset_elements * 4);
      Guarded<float> subtracted(decoded, way.offset_elements * 4);

      kernels::cpu::retain(context_of(way), subtracted.span(), residual.span());

      ASSERT_TRUE(same_bits(expected, residual.span())) << way.text();
      ASSERT_TRUE(residual.intact());
    }
  }
}

TEST_P(Feedback, StoreBf16IsEquivalentToRef) {
  for (std::size_t const n : kElementCounts) {
    auto const& values = kept_gradient(GetParam(), n);
    RoundingKey const key = {{7, 9}, 5, n % 11};
    std::vector<BFloat16> expected(n);
    kernels::ref::store_bf16({}, values, key, expected);
    for (Way const& way : ways_of(n)) {
      ForcedTarget const forced(way.target);
      Guarded<float> in(values, way.offset_elements * 4);
      Guarded<BFloat16> out(n, way.offset_elements * 2);

      kernels::cpu::store_bf16(context_of(way), in.span(), key, out.span());

      ASSERT_TRUE(same_bits(expected, out.span())) << way.text();
      ASSERT_TRUE(out.intact());
    }
  }
}

TEST_P(Feedback, ScaleAndSumSquaresAreEquivalentToRef) {
  for (std::size_t const n : kElementCounts) {
    auto const& before = kept_gradient(GetParam(), n);
    auto expected = before;
    kernels::ref::scale({}, 0.3F, expected);
    double sum = 0;
    kernels::ref::sum_squares({}, before, &sum);
    for (Way const& way : ways_of(n)) {
      ForcedTarget const forced(way.target);
      Guarded<float> values(before, way.offset_elements * 4);

      double found = 0;
      kernels::cpu::sum_squares(context_of(way), values.span(), &found);
      kernels::cpu::scale(context_of(way), 0.3F, values.span());

      if (GetParam() != Shape::with_nan) {  // which of two NaN a sum gives is not ours to say
        ASSERT_EQ(std::bit_cast<std::uint64_t>(sum), std::bit_cast<std::uint64_t>(found));
      }
      ASSERT_TRUE(same_bits(expected, values.span())) << way.text();
      ASSERT_TRUE(values.intact());
    }
  }
}

TEST_P(Feedback, TakeAndScatterAddAreEquivalentToRef) {
  for (std::size_t const n : kElementCounts) {
    for (std::uint64_t const granularity : {1ULL, 7ULL, 256ULL}) {
      std::uint64_t const universe = (n + granularity - 1) / granularity;
      auto indices = some_indices(universe, universe / 3);
      if (universe != 0 && (indices.empty() || indices.back() + 1 != universe)) {
        indices.push_back(static_cast<std::uint32_t>(universe - 1));
      }
      auto const& before = kept_gradient(GetParam(), n);
      std::size_t const num_values =
          indices.empty() ? 0 : indices.size() * granularity - (universe * granularity - n);
      auto expected_x = before;
      std::vector<float> expected_values(num_values);
      kernels::ref::take({}, indices, granularity, expected_x, expected_values);
      auto expected_sum = before;
      kernels::ref::scatter_add({}, indices, granularity, expected_values, 0.25F, expected_sum);
      for (Way const& way : ways_of(n + granularity)) {
        Guarded<float> x(before, way.offset_elements * 4);
        Guarded<float> sum(before, way.offset_elements * 4);
        Guarded<float> values(num_values, way.offset_elements * 4);

        kernels::cpu::take(context_of(way), indices, granularity, x.span(), values.span());
        kernels::cpu::scatter_add(context_of(way), indices, granularity, values.span(), 0.25F,
                                  sum.span());

        ASSERT_TRUE(same_bits(expected_x, x.span())) << way.text();
        ASSERT_TRUE(same_bits(expected_values, values.span())) << way.text();
        ASSERT_TRUE(same_bits(expected_sum, sum.span())) << way.text();
        ASSERT_TRUE(x.intact() && sum.intact() && values.intact());
      }
    }
  }
}

TEST_P(Feedback, CompensateTakeIsEquivalentToRef) {
  for (std::size_t const n : kElementCounts) {
    for (std::uint64_t const granularity : {1ULL, 7ULL}) {
      std::uint64_t const draw = mix64(n) + granularity;
      DType const dtype = std::array{DType::f32, DType::f16, DType::bf16}[draw % 3];
      auto const stored = stored_as(dtype, kept_gradient(GetParam(), n));
      auto const before = draw % 4 == 0 ? std::vector<float>{} : finite_gradient(GetParam(), n, 2);
      // None, and some with the first and the last element among them.
      std::uint64_t const num_blocks = n / granularity;
      auto indices = some_indices(num_blocks, draw % 5 == 0 ? 0 : (num_blocks + 2) / 3);
      if (!indices.empty()) {
        indices.front() = 0;
        indices.back() = static_cast<std::uint32_t>(num_blocks - 1);
      }
      std::vector<float> expected(n);
      std::vector<float> expected_values(indices.size() * granularity);
      auto const flags =
          kernels::ref::compensate_take({}, {stored.data(), n, dtype}, {before, expected, 0.5F},
                                        indices, granularity, expected_values);
      for (Way const& way : ways_of(draw)) {
        ForcedTarget const forced(way.target);
        Guarded<std::byte> gradient(stored, way.offset_elements * size_of(dtype));
        Guarded<float> in(before, way.offset_elements * 4);
        Guarded<float> apart(n, way.offset_elements * 4);
        Guarded<float>& out = way.in_place && !before.empty() ? in : apart;
        Guarded<float> values(expected_values.size(), way.offset_elements * 4);

        auto const found = kernels::cpu::compensate_take(
            context_of(way), {gradient.span().data(), n, dtype}, {in.span(), out.span(), 0.5F},
            indices, granularity, values.span());

        SCOPED_TRACE(way.text() + ", " + std::string(dtype_name(dtype)));
        ASSERT_TRUE(same_bits(expected, out.span()));
        ASSERT_TRUE(same_bits(expected_values, values.span()));
        ASSERT_TRUE(out.intact() && values.intact());
        ASSERT_EQ(flags, found);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Feedback, ::testing::ValuesIn(kAllShapes), param_name);

TEST(Indices, RandomkIsEquivalentToRef) {
  for (std::uint64_t const n : {1ULL, 33ULL, 4097ULL, 300001ULL, 4294963200ULL}) {
    for (std::uint64_t const k : {0ULL, 1ULL, 2ULL, 33ULL, 513ULL, 4097ULL, 100001ULL}) {
      if (k > n) continue;
      std::vector<std::uint32_t> expected(k);
      kernels::ref::randomk({}, {11, 13}, k + 17, n, expected);
      for (Way const& way : ways_of(k)) {
        ForcedTarget const forced(way.target);
        Guarded<std::uint32_t> indices(k, way.offset_elements * 4);

        kernels::cpu::randomk(context_of(way), {11, 13}, k + 17, n, indices.span());

        ASSERT_TRUE(same_bits(expected, indices.span())) << way.text() << ", n " << n;
        ASSERT_TRUE(indices.intact());
      }
    }
  }
}

TEST(Indices, CheckIsEquivalentToRef) {
  for (std::size_t const k : {1U, 2U, 31U, 33U, 4097U, 65537U}) {
    auto const good = some_indices(4 * k, k);
    for (std::size_t const at : {std::size_t{0}, k / 2, k - 1}) {
      for (std::uint32_t const wrong : {0U, static_cast<std::uint32_t>(4 * k), 0xffffffffU}) {
        auto indices = good;
        indices[at] = wrong;
        for (Way const& way : ways_of(k + at)) {
          ASSERT_EQ(kernels::ref::check_indices({}, indices, 4 * k),
                    kernels::cpu::check_indices(context_of(way), indices, 4 * k))
              << "k " << k << ", index " << at << " is " << wrong;
          ASSERT_TRUE(kernels::cpu::check_indices(context_of(way), good, 4 * k));
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradsieve::testing
