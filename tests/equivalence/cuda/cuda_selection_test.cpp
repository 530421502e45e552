// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "tests/equivalence/cuda/cuda_cases.hpp"

namespace gradsieve::testing {
namespace {

using kernels::Flags;

/// One selection on ref and on the device; all that either leaves is compared.
struct SelectionCase {
  CudaCase c;
  std::size_t capacity_indices;
  std::size_t capacity_values;
  std::size_t workspace_bytes;
  std::size_t ref_workspace_bytes = 0;
};
using RefCall =
    std::function<Flags(ExecContext const&, ConstTensorView, ResidualView, SparseView&)>;
using CudaCall =
    std::function<Flags(CudaStep&, ExecContext const&, ConstTensorView, ResidualView, SparseView&)>;

void compare(SelectionCase const& problem, RefCall const& on_ref, CudaCall const& on_cuda) {
  CudaCase const& c = problem.c;
  auto const stored = stored_as(c.dtype, make_gradient(c.shape, c.num_elements));
  auto const before = c.has_residual ? finite_values(c, 2) : std::vector<float>{};
  std::vector<float> residual(c.num_elements);
  std::vector<std::uint32_t> indices(problem.capacity_indices, 7);
  std::vector<float> values(problem.capacity_values, 7);
  SparseView expected{.indices = indices, .values = values};
  std::vector<std::byte> memory(problem.ref_workspace_bytes + Workspace::kAlignment);
  Workspace ref_workspace{std::span(memory)};
  ExecContext ref;
  ref.workspace = &ref_workspace;
  Flags const flags =
      on_ref(ref, {stored.data(), c.num_elements, c.dtype}, {before, residual, 0.9F}, expected);

  CudaStep step(problem.workspace_bytes);
  OnDevice<std::byte> const gradient(step, stored, c.offset_elements * size_of(c.dtype));
  OnDevice<float> const in(step, before, c.residual_offset * 4);
  OnDevice<float> const apart(step, std::vector<float>(c.num_elements, 7), c.residual_offset * 4);
  OnDevice<float> const& out = c.in_place && c.has_residual ? in : apart;
  OnDevice<std::uint32_t> const chosen(step,
                                       std::vector<std::uint32_t>(problem.capacity_indices, 7));
  OnDevice<float> const sent(step, std::vector<float>(problem.capacity_values, 7));
  OnDevice<SparseCounts> const counts(step, std::vector<SparseCounts>{{9, 9, 9}});
  step.set_words({.step = 5, .flags = kStepOverflow});
  SparseView actual{.indices = chosen.span(), .values = sent.span(), .counts = counts.data()};

  ASSERT_EQ(on_cuda(step, step.context(), {gradient.data(), c.num_elements, c.dtype},
                    {in.span(), out.span(), 0.9F}, actual),
            0U);

  ASSERT_TRUE(went_well(step));
  SparseCounts const found = counts.read().front();
  ASSERT_EQ(found.num_indices, expected.num_indices);
  ASSERT_EQ(found.num_values, expected.num_values);
  ASSERT_EQ(found.num_overflowed, expected.num_overflowed);
  ASSERT_GE(actual.num_indices, expected.num_indices);
  ASSERT_GE(actual.num_values, expected.num_values);
  ASSERT_EQ(actual.granularity, expected.granularity);
  ASSERT_TRUE(same_bytes(indices, chosen.read()));
  ASSERT_TRUE(same_bytes(values, sent.read()));
  ASSERT_TRUE(same_bytes(residual, out.read()));
  ASSERT_TRUE(out.intact() && chosen.intact() && sent.intact() && counts.intact());
  ASSERT_EQ(step.read_words().flags, flags | kStepOverflow);
}

/// Sizes with a sample as well: it is drawn from two tiles on.
[[nodiscard]] std::vector<CudaCase> selection_cases() {
  std::vector<CudaCase> cases = cuda_cases();
  if (is_quick_subset()) {
    std::erase_if(cases, [](CudaCase const& c) { return c.draw % 2 != 0 && c.num_elements > 4; });
    return cases;
  }
  for (Shape const shape : kAllShapes) {
    auto const number = static_cast<std::uint64_t>(shape);
    cases.push_back({.shape = shape,
                     .dtype = kGradientTypes[number % 3],
                     .num_elements = 20483,
                     .residual_offset = number % 4 == 0 ? 1U : 0U,
                     .in_place = number % 2 == 0,
                     .draw = mix64(number)});
  }
  return cases;
}

TEST(CudaTopk, IsEquivalentToRef) {
  for (CudaCase const& c : selection_cases()) {
    std::size_t const n = c.num_elements;
    for (std::size_t const k : {n / 100, n / 7, n, std::min<std::size_t>(n, 1), std::size_t{0}}) {
      bool const is_drawn = mix64(c.draw + k) % 3 != 0 || k == n / 100;
      if (is_quick_subset() && !is_drawn) continue;
      SCOPED_TRACE(c.text() + ", k " + std::to_string(k));
      compare(
          {c, k, k, kernels::topk_workspace_bytes(n, k)},
          [&](ExecContext const& ctx, ConstTensorView g, ResidualView r, SparseView& s) {
            return kernels::ref::topk(ctx, g, r, k, s);
          },
          [&](CudaStep& step, ExecContext const& ctx, ConstTensorView g, ResidualView r,
              SparseView& s) {
            if (c.draw % 2 == 0) return kernels::cuda::topk(ctx, g, r, k, s);
            OnDevice<std::uint64_t> const word(step, std::vector<std::uint64_t>{k});
            auto const flags =
                kernels::cuda::topk(ctx, g, r, StepValue<std::uint64_t>::in_word(word.data()), s);
            step.wait();
            return flags;
          });
      if (HasFatalFailure()) return;
    }
  }
}

// What is sampled says nothing of the rest: too few candidates, then more than there is room for.
TEST(CudaTopk, FindsTheCutWhereTheSampleMisleads) {
  constexpr std::size_t n = 20483;
  constexpr std::size_t k = n / 100;
  constexpr std::uint64_t kSamples = 512;  // num_topk_samples(n), at the positions of topk.cu
  for (bool const is_sample_large : {true, false}) {
    SCOPED_TRACE(is_sample_large ? "large sample" : "small sample");
    std::vector<float> gradient(n);
    for (std::size_t i = 0; i < n; ++i) {
      float const size = 1.0F + 1e-4F * static_cast<float>(mix64(i) % n);
      gradient[i] = (i % 3 == 0 ? -size : size) * (is_sample_large ? 1.0F : 1000.0F);
    }
    for (std::uint64_t j = 0; j < kSamples; ++j) {
      std::uint64_t const start = j * n / kSamples;
      std::uint64_t const size = (j + 1) * n / kSamples - start;
      gradient[start + ((mix64(j) >> 32) * size >> 32)] *= is_sample_large && j < 60 ? 1e4F
                                                           : is_sample_large         ? 1.0F
                                                                                     : 1e-6F;
    }
    std::vector<float> residual(n);
    std::vector<std::uint32_t> indices(k);
    std::vector<float> values(k);
    SparseView expected{.indices = indices, .values = values};
    kernels::ref::topk({}, std::span<float const>(gradient), {{}, residual, 1.0F}, k, expected);
    CudaStep step(kernels::topk_workspace_bytes(n, k));
    OnDevice<float> const given(step, gradient);
    OnDevice<float> const left(step, std::vector<float>(n, 7));
    OnDevice<std::uint32_t> const chosen(step, std::vector<std::uint32_t>(k));
    OnDevice<float> const sent(step, std::vector<float>(k));
    OnDevice<SparseCounts> const counts(step, std::vector<SparseCounts>(1));
    SparseView actual{.indices = chosen.span(), .values = sent.span(), .counts = counts.data()};
    step.set_words({});
    kernels::cuda::topk(step.context(), ConstTensorView(given.span()), {{}, left.span(), 1.0F}, k,
                        actual);
    ASSERT_TRUE(went_well(step));
    ASSERT_TRUE(same_bytes(indices, chosen.read()));
    ASSERT_TRUE(same_bytes(values, sent.read()));
    ASSERT_TRUE(same_bytes(residual, left.read()));
  }
}

TEST(CudaTopk, RefusesAWorkspaceThatIsTooSmall) {
  CudaStep step(1024);
  OnDevice<float> const gradient(step, std::vector<float>(20000, 1));
  OnDevice<float> const residual(step, std::vector<float>(20000, 0));
  OnDevice<std::uint32_t> const indices(step, std::vector<std::uint32_t>(9));
  OnDevice<float> const values(step, std::vector<float>(9));
  SparseView view{.indices = indices.span(), .values = values.span()};
  kernels::cuda::topk(step.context(), ConstTensorView(gradient.span()),
                      {residual.span(), residual.span(), 1.0F}, 9, view);
  step.wait();
  EXPECT_EQ(step.error().code(), Code::internal);
  EXPECT_EQ(residual.read(), std::vector<float>(20000, 0));
}

TEST(CudaThreshold, IsEquivalentToRef) {
  for (CudaCase const& c : selection_cases()) {
    std::size_t const n = c.num_elements;
    for (float const threshold : {1.5F, 1e-30F}) {
      std::size_t const capacity = c.draw % 3 == 0 ? n : c.draw % 3 == 1 ? n / 9 : n / 100;
      SCOPED_TRACE(c.text() + ", threshold " + std::to_string(threshold));
      compare(
          {c, capacity, capacity, kernels::threshold_workspace_bytes(n)},
          [&](ExecContext const& ctx, ConstTensorView g, ResidualView r, SparseView& s) {
            return kernels::ref::threshold(ctx, g, r, threshold, s);
          },
          [&](CudaStep& step, ExecContext const& ctx, ConstTensorView g, ResidualView r,
              SparseView& s) {
            OnDevice<float> const word(step, std::vector<float>{threshold});
            auto const flags =
                kernels::cuda::threshold(ctx, g, r, StepValue<float>::in_word(word.data()), s);
            step.wait();
            return flags;
          });
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CudaBlockTopk, IsEquivalentToRef) {
  constexpr std::size_t kBlocks[] = {1, 4, 7, 256, 1000, 4096};
  for (CudaCase const& c : selection_cases()) {
    std::size_t const n = c.num_elements;
    if (n == 0) continue;
    for (auto const norm : {kernels::BlockNorm::l2, kernels::BlockNorm::linf}) {
      std::size_t const block = kBlocks[mix64(c.draw + static_cast<std::uint64_t>(norm)) % 6];
      std::size_t const num_blocks = (n + block - 1) / block;
      std::size_t const k = c.draw % 5 == 0 ? num_blocks : (num_blocks + 9) / 10;
      SCOPED_TRACE(c.text() + ", block " + std::to_string(block) + ", k " + std::to_string(k));
      compare(
          {c, k, k * block, kernels::block_topk_workspace_bytes(n, block, k),
           Workspace::padded(num_blocks * 8)},
          [&](ExecContext const& ctx, ConstTensorView g, ResidualView r, SparseView& s) {
            return kernels::ref::block_topk(ctx, g, r, block, norm, k, s);
          },
          [&](CudaStep&, ExecContext const& ctx, ConstTensorView g, ResidualView r, SparseView& s) {
            return kernels::cuda::block_topk(ctx, g, r, block, norm, k, s);
          });
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CudaRandomk, IsEquivalentToRef) {
  for (std::uint64_t const n : {std::uint64_t{1}, std::uint64_t{7}, std::uint64_t{4099},
                                std::uint64_t{1} << 31, kMaxPieceElements}) {
    for (std::size_t const k :
         {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{1023}}) {
      if (k > n) continue;
      SCOPED_TRACE(std::to_string(k) + " of " + std::to_string(n));
      PhiloxKey const key = {3, 4};
      std::vector<std::uint32_t> expected(k);
      kernels::ref::randomk({}, key, 6, n, expected);
      for (std::size_t const offset_bytes : {0, 4}) {
        CudaStep step;
        OnDevice<std::uint32_t> const indices(step, std::vector<std::uint32_t>(k), offset_bytes);
        step.set_words({.step = 6});
        kernels::cuda::randomk(step.context(), key,
                               StepValue<std::uint64_t>::in_word(&step.words()->step), n,
                               indices.span());
        ASSERT_TRUE(went_well(step));
        ASSERT_TRUE(same_bytes(expected, indices.read()));
        ASSERT_TRUE(indices.intact());
      }
    }
  }
}

}  // namespace
}  // namespace gradsieve::testing
