// SPDX-License-Identifier: Apache-2.0
// Choosing elements, with feedback in the same pass.
#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/cuda/gpu_case.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::bench {
namespace {

constexpr std::uint64_t kBlockElements = 256;

std::string percent(double density) {
  std::string text = std::to_string(density * 100);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " %";
}

std::uint64_t chosen_of(std::uint64_t count, double density) {
  return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(static_cast<double>(count) * density),
                                   1, count);
}

/// Where a selection reads and what it writes.
struct SelectionArrays {
  std::size_t g = 0, e = 0, indices = 0, values = 0, counts = 0;

  SelectionArrays(GpuCase& c, std::uint64_t n, std::uint64_t num_indices, std::uint64_t num_values)
      : g(c.gradient(n)),
        e(c.sums(n)),
        indices(c.output(4 * num_indices)),
        values(c.output(4 * num_values)),
        counts(c.output(sizeof(SparseCounts))) {}

  [[nodiscard]] ResidualView feedback(Arrays const& a) const {
    return {a.as<float>(e), a.as<float>(e), 1.0F};
  }
  [[nodiscard]] SparseView view(Arrays const& a) const {
    return {.indices = a.as<std::uint32_t>(indices),
            .values = a.as<float>(values),
            .counts = a.as<SparseCounts>(counts).data()};
  }
};

/// On a device the kernel has written the counts; ref leaves them in the view.
void finish(ExecContext const& ctx, kernels::Flags flags, SparseView const& view) {
  raise_flags(ctx, flags);
  if (ctx.backend == Backend::cuda) return;
  *view.counts = {view.num_indices, view.num_values, view.num_overflowed};
}

void add_topk(CaseList& list, DType dtype, double density) {
  std::uint64_t const n = list.num_elements;
  std::uint64_t const k = chosen_of(n, density);
  auto const size = static_cast<double>(size_of(dtype));
  GpuCase c = {
      .kernel = "topk",
      .variant = percent(density),
      .dtype = dtype,
      .traffic = {std::to_string(size_of(dtype)) + " g + 8 e + 8 k/n", size + 8 + 8 * density},
      .depends_on_data = true,
      .workspace_bytes = kernels::topk_workspace_bytes(n, k)};
  SelectionArrays const s(c, n, k, k);
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    SparseView view = s.view(a);
    finish(ctx, kernels::topk(ctx, {a.data(s.g), n, dtype}, s.feedback(a), k, view), view);
  };
  list.add(std::move(c));
}

/// The magnitude of c that one in a hundred reaches, of a sample from the front.
float threshold_of(ExecContext const& ctx, Arrays const& a, SelectionArrays const& s,
                   std::uint64_t n) {
  auto const count = static_cast<std::size_t>(std::min<std::uint64_t>(n, 1 << 16));
  std::vector<float> c = a.read<float>(ctx, s.g, count);
  std::vector<float> const e = a.read<float>(ctx, s.e, count);
  for (std::size_t i = 0; i < count; ++i) c[i] = std::fabs(c[i] + e[i]);
  std::size_t const rank = count - 1 - count / 100;
  std::ranges::nth_element(c, c.begin() + static_cast<std::ptrdiff_t>(rank));
  return std::max(c[rank], 1e-6F);
}

void add_threshold(CaseList& list) {
  std::uint64_t const n = list.num_elements;
  std::uint64_t const capacity = chosen_of(n, 0.015);
  GpuCase c = {.kernel = "threshold",
               .variant = "1 %",
               .traffic = {"4 g + 8 e + 8 k/n", 12.08},
               .depends_on_data = true,
               .workspace_bytes = kernels::threshold_workspace_bytes(n)};
  SelectionArrays const s(c, n, capacity, capacity);
  std::size_t const word = c.prepared(sizeof(float));
  c.prepare = [=](ExecContext const& ctx, Arrays const& a) {
    a.write(ctx, word, std::vector<float>{threshold_of(ctx, a, s, n)});
  };
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    SparseView view = s.view(a);
    auto const least = StepValue<float>::in_word(a.as<float>(word).data());
    finish(ctx, kernels::threshold(ctx, {a.data(s.g), n, DType::f32}, s.feedback(a), least, view),
           view);
  };
  list.add(std::move(c));
}

void add_block_topk(CaseList& list, kernels::BlockNorm norm) {
  std::uint64_t const n = list.num_elements;
  std::uint64_t const num_blocks = (n + kBlockElements - 1) / kBlockElements;
  std::uint64_t const k = chosen_of(num_blocks, 0.01);
  bool const is_l2 = norm == kernels::BlockNorm::l2;
  GpuCase c = {.kernel = "block_topk",
               .variant = std::string("1 %, block 256, ") + (is_l2 ? "l2" : "linf"),
               .traffic = {"4 g + 8 e + (4 + 4 / 256) k/n", 12 + 0.01 * (4 + 4.0 / kBlockElements)},
               .depends_on_data = true,
               .workspace_bytes = kernels::block_topk_workspace_bytes(n, kBlockElements, k)};
  SelectionArrays const s(c, n, k, k * kBlockElements);
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    SparseView view = s.view(a);
    finish(ctx,
           kernels::block_topk(ctx, {a.data(s.g), n, DType::f32}, s.feedback(a), kBlockElements,
                               norm, k, view),
           view);
  };
  list.add(std::move(c));
}

void add_randomk(CaseList& list) {
  std::uint64_t const n = list.num_elements;
  std::uint64_t const k = chosen_of(n, 0.01);
  GpuCase c = {.kernel = "randomk", .variant = "1 %", .traffic = {"4 k/n", 0.04}};
  std::size_t const indices = c.output(4 * k);
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::randomk(ctx, {1, 2}, std::uint64_t{3}, n, a.as<std::uint32_t>(indices));
  };
  list.add(std::move(c));
}

}  // namespace

void add_selection_cases(CaseList& list) {
  for (DType const dtype : list.dtypes) add_topk(list, dtype, 0.01);
  add_topk(list, DType::f32, 0.001);
  add_topk(list, DType::f32, 0.1);
  add_threshold(list);
  add_block_topk(list, kernels::BlockNorm::l2);
  add_block_topk(list, kernels::BlockNorm::linf);
  add_randomk(list);
}

}  // namespace gradsieve::bench
