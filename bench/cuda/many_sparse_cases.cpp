// SPDX-License-Identifier: Apache-2.0
// Selection from the small tensors of a model, and what comes after it, each in one call.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "bench/cuda/gpu_case.hpp"
#include "kernels/index_forms.hpp"
#include "kernels/many_sparse_ops.hpp"

namespace gradsieve::bench {
namespace {

using kernels::HeldRule;
using kernels::SparseSegment;

constexpr std::array<std::uint64_t, 8> kTensorElements = {1728,  64,  12288, 64,
                                                          16384, 128, 1000,  9216};
constexpr std::uint64_t kAlignElements = 64;
constexpr std::uint64_t kBlockElements = 64;
constexpr std::uint64_t kHeaderBytes = 32;
constexpr float kThreshold = 3.0F;
constexpr std::size_t kRefWorkspaceBytes = std::size_t{1} << 18;  // of a tensor

std::uint64_t aligned(std::uint64_t num_bytes) { return (num_bytes + 15) / 16 * 16; }

/// One in a hundred elements of each tensor; indices by Elias and Fano, values in the bodies.
struct SparseTensors {
  std::vector<SparseSegment> segments;
  std::vector<std::uint64_t> words;
  std::uint64_t num_indices = 0;
  std::uint64_t body_bytes = 0;
  std::size_t table, word_array;

  SparseTensors(GpuCase& c, std::uint64_t num_elements, HeldRule rule) {
    bool const is_drawn = rule == HeldRule::randomk;
    auto const form = is_drawn ? kernels::IndexForm::shared : kernels::IndexForm::elias_fano;
    std::uint64_t first = 0;
    for (std::size_t i = 0; first < num_elements; ++i) {
      std::uint64_t const n =
          std::min(kTensorElements[i % kTensorElements.size()], num_elements - first);
      bool const is_block = rule == HeldRule::block_l2;
      std::uint64_t const granularity = is_block ? kBlockElements : 1;
      std::uint64_t const units = (n + granularity - 1) / granularity;
      std::uint64_t const k = std::max<std::uint64_t>(1, units / 100);
      std::uint64_t const num_values = std::min(k * granularity, n);
      std::uint64_t const universe = rule == HeldRule::threshold ? units + k : units;
      std::size_t const code_bytes = kernels::index_bytes(form, universe, k);
      std::uint64_t const values = body_bytes + (is_drawn ? 0 : kHeaderBytes);
      segments.push_back(
          {.in_gradient = first,
           .in_residual = first,
           .num_elements = n,
           .granularity = granularity,
           .in_indices = num_indices,
           .in_values = values / sizeof(float),
           .num_values = num_values,
           .body_begin = body_bytes,
           .header_bytes = values - body_bytes,
           .values_end = values + 4 * num_values,
           .index_begin = aligned(values + 4 * num_values),
           .universe = universe,
           .word = i,
           .key = {static_cast<std::uint32_t>(i), 5},
           .header = {k, 4 * num_values, code_bytes, static_cast<std::uint64_t>(form)}});
      words.push_back(rule == HeldRule::threshold ? std::bit_cast<std::uint32_t>(kThreshold) : k);
      first += (n + kAlignElements - 1) / kAlignElements * kAlignElements;
      num_indices += (k + 3) / 4 * 4;
      body_bytes = aligned(segments.back().index_begin + code_bytes);
    }
    table = c.prepared(segments.size() * sizeof(SparseSegment));
    word_array = c.prepared(words.size() * sizeof(std::uint64_t));
  }
  [[nodiscard]] std::span<SparseSegment const> view(Arrays const& a) const {
    return a.as<SparseSegment>(table).first(segments.size());
  }
  void write(ExecContext const& ctx, Arrays const& a) const {
    a.write(ctx, table, segments);
    a.write(ctx, word_array, words);
  }
  [[nodiscard]] std::string text() const { return std::to_string(segments.size()) + " tensors"; }

  /// Indices at equal distances.
  [[nodiscard]] std::vector<std::uint32_t> some_indices() const {
    std::vector<std::uint32_t> indices(num_indices);
    for (SparseSegment const& segment : segments) {
      for (std::uint64_t j = 0; j < segment.capacity(); ++j) {
        indices[segment.in_indices + j] =
            static_cast<std::uint32_t>(j * segment.num_elements / segment.capacity());
      }
    }
    return indices;
  }
  [[nodiscard]] std::vector<std::byte> some_bodies() const {
    std::vector<std::byte> bodies(body_bytes);
    std::vector<std::uint32_t> const indices = some_indices();
    for (SparseSegment const& segment : segments) {
      std::memcpy(bodies.data() + segment.body_begin, segment.header.data(), kHeaderBytes);
      auto const own = std::span(indices).subspan(segment.in_indices, segment.capacity());
      for (std::uint64_t j = 0; j < own.size(); ++j) {
        float const value = 0.25F * static_cast<float>(j % 13) - 1.0F;
        std::memcpy(bodies.data() + segment.body_begin + kHeaderBytes + 4 * j, &value, 4);
      }
      kernels::ref::elias_fano_encode(
          {}, own, segment.universe,
          std::span(bodies).subspan(segment.index_begin, segment.index_bytes()));
    }
    return bodies;
  }
};

void add_select(CaseList& list, DType dtype, HeldRule rule, std::string const& name) {
  auto const size = static_cast<double>(size_of(dtype));
  // The code takes a byte and a fifth an index.
  GpuCase c = {
      .kernel = "select_many",
      .dtype = dtype,
      .traffic = {std::to_string(size_of(dtype)) + " g + 8 e + 0.01 (8 + 1.2)", size + 8 + 0.092},
      .depends_on_data = true,
      .workspace_bytes = kRefWorkspaceBytes};
  SparseTensors const t(c, list.num_elements, rule);
  std::size_t const g = c.gradient(list.num_elements);
  std::size_t const e = c.sums(list.num_elements);
  std::size_t const indices = c.output(t.num_indices * sizeof(std::uint32_t));
  std::size_t const bodies = c.output(t.body_bytes);
  c.variant = name + " 1 %, " + t.text();
  c.prepare = [=](ExecContext const& ctx, Arrays const& a) { t.write(ctx, a); };
  c.run = [=, n = list.num_elements](ExecContext const& context, Arrays const& a) {
    ExecContext ctx = context;
    ctx.piece_word = a.as<std::uint64_t>(t.word_array).data();
    float* const residual = a.as<float>(e).data();
    kernels::EncodedArrays const arrays = {.gradient = {a.data(g), n, dtype},
                                           .residual_in = residual,
                                           .residual_out = residual,
                                           .bodies = a.data(bodies)};
    kernels::ChosenArrays const chosen = {a.as<std::uint32_t>(indices).data(),
                                          a.as<float>(bodies).data()};
    raise_flags(ctx, kernels::select_many(ctx, t.view(a), rule, arrays, chosen));
  };
  list.add(std::move(c));
}

void add_sparse_add(CaseList& list) {
  // A sector of the sums for each index, read and written.
  GpuCase c = {.kernel = "sparse_add_many",
               .traffic = {"0.01 (64 + 4 + 1.2)", 0.692},
               .workspace_bytes = kRefWorkspaceBytes};
  SparseTensors const t(c, list.num_elements, HeldRule::topk);
  std::size_t const sums = c.sums(list.num_elements);
  std::size_t const bodies = c.prepared(t.body_bytes);
  c.variant = "1 %, " + t.text();
  c.prepare = [=](ExecContext const& ctx, Arrays const& a) {
    t.write(ctx, a);
    a.write(ctx, bodies, t.some_bodies());
  };
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    static_cast<void>(kernels::sparse_add_many(
        ctx, t.view(a), {a.data(bodies), a.as<float>(sums).data(), false, 0.25F},
        a.as<float>(bodies).data()));
  };
  list.add(std::move(c));
}

void add_put_back(CaseList& list) {
  GpuCase c = {.kernel = "put_back_many", .traffic = {"0.01 (64 + 8)", 0.72}};
  SparseTensors const t(c, list.num_elements, HeldRule::topk);
  std::size_t const residual = c.sums(list.num_elements);
  std::size_t const indices = c.prepared(t.num_indices * sizeof(std::uint32_t));
  std::size_t const lost = c.floats(t.body_bytes / sizeof(float), 4);
  c.variant = "1 %, " + t.text();
  c.prepare = [=](ExecContext const& ctx, Arrays const& a) {
    t.write(ctx, a);
    a.write(ctx, indices, t.some_indices());
  };
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::put_back_many(ctx, t.view(a), a.as<std::uint32_t>(indices).data(),
                           a.as<float>(lost).data(), a.as<float>(residual).data());
  };
  list.add(std::move(c));
}

}  // namespace

void add_many_sparse_cases(CaseList& list) {
  for (DType const dtype : list.dtypes) {
    add_select(list, dtype, HeldRule::topk, "topk");
    add_select(list, dtype, HeldRule::threshold, "threshold");
    add_select(list, dtype, HeldRule::block_l2, "block_topk");
    add_select(list, dtype, HeldRule::randomk, "randomk");
  }
  add_sparse_add(list);
  add_put_back(list);
}

}  // namespace gradsieve::bench
