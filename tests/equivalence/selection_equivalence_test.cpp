// SPDX-License-Identifier: Apache-2.0
// The fused selections: every bit of the selection and of the residual as `ref` has it.
#include <functional>

#include "tests/equivalence/kernel_ways.hpp"
#include "tests/support/guarded.hpp"

namespace gradsieve::testing {
namespace {

/// A gradient, a residual and what is asked of them.
struct Problem {
  std::vector<std::byte> gradient;
  std::vector<float> residual;  ///< empty: none
  std::uint64_t num_elements = 0;
  DType dtype = DType::f32;
  float carry = 1.0F;
};

struct Outcome {
  std::vector<float> residual;
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  std::uint64_t num_overflowed = 0;
  std::uint64_t granularity = 0;
  kernels::Flags flags = 0;
};

using Select =
    std::function<kernels::Flags(ExecContext const&, ConstTensorView, ResidualView, SparseView&)>;

/// Room for a selection, in indices and in values.
struct Room {
  std::size_t num_indices = 0;
  std::size_t num_values = 0;
};

Problem make_problem(Shape shape, std::size_t num_elements, std::uint64_t draw) {
  std::uint64_t const bits = mix64(draw);
  Problem problem;
  problem.num_elements = num_elements;
  problem.dtype = static_cast<DType>(bits % 3);
  problem.carry = (bits >> 8) % 2 == 0 ? 1.0F : 0.5F;
  problem.gradient = stored_as(problem.dtype, kept_gradient(shape, num_elements));
  bool const has_residual = (bits >> 16) % 4 != 0;
  if (has_residual) {
    problem.residual =
        kept_gradient(is_finite_shape(shape) ? shape : Shape::gaussian, num_elements, 2);
  }
  return problem;
}

Outcome run_once(Problem const& problem, Room room, std::size_t workspace_bytes, Way const& way,
                 Select const& select) {
  Guarded<std::byte> gradient(problem.gradient, way.offset_elements * size_of(problem.dtype));
  Guarded<float> in(problem.residual, way.offset_elements * 4);
  Guarded<float> apart(problem.num_elements, (way.offset_elements + 3) * 4);
  bool const in_place = way.in_place && !problem.residual.empty();
  Guarded<float>& out = in_place ? in : apart;
  Guarded<std::uint32_t> indices(room.num_indices, way.offset_elements * 4);
  Guarded<float> values(room.num_values, way.offset_elements * 4);
  Guarded<std::byte> memory(workspace_bytes);
  Workspace workspace(memory.span());
  SparseView selection;
  selection.indices = indices.span();
  selection.values = values.span();

  Outcome outcome;
  outcome.flags = select(context_of(way, &workspace),
                         {gradient.span().data(), problem.num_elements, problem.dtype},
                         {in.span(), out.span(), problem.carry}, selection);

  EXPECT_TRUE(out.intact() && in.intact() && indices.intact() && values.intact() && memory.intact())
      << "a store out of bounds";
  EXPECT_TRUE(in_place || problem.residual == in.copy()) << "the old residual changed";
  outcome.residual = out.copy();
  outcome.indices = indices.copy();
  outcome.indices.resize(selection.num_indices);
  outcome.values = values.copy();
  outcome.values.resize(selection.num_values);
  outcome.num_overflowed = selection.num_overflowed;
  outcome.granularity = selection.granularity;
  return outcome;
}

void expect_equivalent(Problem const& problem, Room room, std::size_t workspace_bytes,
                       Select const& ref_select, Select const& cpu_select, std::uint64_t draw) {
  Outcome expected = run_once(problem, room, workspace_bytes, Way{}, ref_select);
  for (Way const& way : ways_of(draw)) {
    ForcedTarget const forced(way.target);
    Outcome actual = run_once(problem, room, workspace_bytes, way, cpu_select);

    SCOPED_TRACE(way.text() + ", n " + std::to_string(problem.num_elements) + ", " +
                 std::string(dtype_name(problem.dtype)) + ", carry " +
                 std::to_string(problem.carry) + (problem.residual.empty() ? ", no residual" : ""));
    ASSERT_TRUE(same_bits(expected.indices, std::span(actual.indices))) << "indices";
    ASSERT_TRUE(same_bits(expected.values, std::span(actual.values))) << "values";
    ASSERT_TRUE(same_bits(expected.residual, std::span(actual.residual))) << "residual";
    ASSERT_EQ(expected.flags, actual.flags);
    ASSERT_EQ(expected.num_overflowed, actual.num_overflowed);
    ASSERT_EQ(expected.granularity, actual.granularity);
  }
}

/// Different ways to choose 0 … n of n.
std::vector<std::uint64_t> some_counts(std::uint64_t n) {
  std::vector<std::uint64_t> counts = {0, 1, n / 1000, n / 100, n / 10, n / 2, n};
  std::erase_if(counts, [n](std::uint64_t k) { return k > n; });
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

class Selection : public ::testing::TestWithParam<Shape> {
 protected:
  /// test(problem, draw) for every element count.
  template <typename Test>
  void for_each_problem(std::uint64_t salt, Test const& test) {
    for (std::size_t const n : kElementCounts) {
      std::uint64_t const draw = mix64(salt + n) + static_cast<std::uint64_t>(GetParam());
      test(make_problem(GetParam(), n, draw), draw);
      if (HasFatalFailure()) return;
    }
  }
};

// Long arrays go past the caches, from an aligned residual (offset 13 + 3) and from another.
TEST(StreamedSelection, IsEquivalentToRef) {
  Problem problem;
  problem.num_elements = (std::uint64_t{1} << 22) + 37;
  problem.gradient =
      stored_as(DType::f32, make_gradient(Shape::heavy_tailed, problem.num_elements));
  problem.residual = make_gradient(Shape::heavy_tailed, problem.num_elements, 2);
  std::uint64_t const k = problem.num_elements / 100;
  std::size_t const workspace_bytes = kernels::topk_workspace_bytes(problem.num_elements, k);
  for (bool const is_topk : {true, false}) {
    auto const run = [&](Backend backend, Way const& way) {
      return run_once(problem, {k, k}, workspace_bytes, way,
                      [&](ExecContext ctx, ConstTensorView gradient, ResidualView residual,
                          SparseView& selection) {
                        ctx.backend = backend;
                        return is_topk
                                   ? kernels::topk(ctx, gradient, residual, k, selection)
                                   : kernels::threshold(ctx, gradient, residual, 9.0F, selection);
                      });
    };
    Outcome expected = run(Backend::ref, Way{});
    for (SimdTarget const target : supported_simd_targets()) {
      ForcedTarget const forced(target);
      for (std::size_t const offset : {13U, 5U}) {
        Way const way = {target, offset == 13 ? 1 : 3, offset, false};
        SCOPED_TRACE(way.text() + (is_topk ? ", topk" : ", threshold"));
        Outcome actual = run(Backend::cpu, way);
        ASSERT_TRUE(same_bits(expected.indices, std::span(actual.indices))) << "indices";
        ASSERT_TRUE(same_bits(expected.values, std::span(actual.values))) << "values";
        ASSERT_TRUE(same_bits(expected.residual, std::span(actual.residual))) << "residual";
        ASSERT_EQ(expected.num_overflowed, actual.num_overflowed);
      }
    }
  }
}

TEST_P(Selection, TopkIsEquivalentToRef) {
  for_each_problem(1, [](Problem const& problem, std::uint64_t draw) {
    for (std::uint64_t const k : some_counts(problem.num_elements)) {
      SCOPED_TRACE("k " + std::to_string(k));
      expect_equivalent(
          problem, {k, k}, kernels::topk_workspace_bytes(problem.num_elements, k),
          [k](auto const& ctx, auto gradient, auto residual, auto& selection) {
            return kernels::ref::topk(ctx, gradient, residual, k, selection);
          },
          [k](auto const& ctx, auto gradient, auto residual, auto& selection) {
            return kernels::cpu::topk(ctx, gradient, residual, k, selection);
          },
          draw + k);
      if (HasFatalFailure()) return;
    }
  });
}

TEST_P(Selection, ThresholdIsEquivalentToRef) {
  for_each_problem(2, [](Problem const& problem, std::uint64_t draw) {
    for (float const threshold : {1e-41F, 0.25F, 2.0F, 1e20F}) {
      // The whole gradient fits; or a part of it, or nothing.
      std::uint64_t const n = problem.num_elements;
      std::uint64_t const room = draw % 3 == 0 ? n : draw % 3 == 1 ? n / 3 : n / 200;
      SCOPED_TRACE("threshold " + std::to_string(threshold));
      expect_equivalent(
          problem, {room, room}, 0,
          [=](auto const& ctx, auto gradient, auto residual, auto& selection) {
            return kernels::ref::threshold(ctx, gradient, residual, threshold, selection);
          },
          [=](auto const& ctx, auto gradient, auto residual, auto& selection) {
            return kernels::cpu::threshold(ctx, gradient, residual, threshold, selection);
          },
          draw);
      if (HasFatalFailure()) return;
      ++draw;
    }
  });
}

TEST_P(Selection, BlockTopkIsEquivalentToRef) {
  for_each_problem(3, [](Problem const& problem, std::uint64_t draw) {
    for (std::uint64_t const block_elements : {1ULL, 8ULL, 100ULL, 256ULL, 5000ULL}) {
      std::uint64_t const num_blocks = (problem.num_elements + block_elements - 1) / block_elements;
      auto const counts = some_counts(num_blocks);
      std::uint64_t const k = counts[draw % counts.size()];
      auto const norm = draw % 2 == 0 ? kernels::BlockNorm::l2 : kernels::BlockNorm::linf;
      SCOPED_TRACE("block " + std::to_string(block_elements) + ", k " + std::to_string(k));
      std::size_t const num_values = std::min(k * block_elements, problem.num_elements);
      expect_equivalent(
          problem, {k, num_values},
          kernels::block_topk_workspace_bytes(problem.num_elements, block_elements, k),
          [=](auto const& ctx, auto gradient, auto residual, auto& selection) {
            return kernels::ref::block_topk(ctx, gradient, residual, block_elements, norm, k,
                                            selection);
          },
          [=](auto const& ctx, auto gradient, auto residual, auto& selection) {
            return kernels::cpu::block_topk(ctx, gradient, residual, block_elements, norm, k,
                                            selection);
          },
          draw);
      if (HasFatalFailure()) return;
      draw = mix64(draw);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, Selection, ::testing::ValuesIn(kAllShapes), param_name);

}  // namespace
}  // namespace gradsieve::testing
