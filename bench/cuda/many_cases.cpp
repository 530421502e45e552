// SPDX-License-Identifier: Apache-2.0
// One call for the tensors of a model: matrices, rows and biases in turn until all elements are
// used up. They lie one behind another, each at a multiple of 64 elements, as in a bucket.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "bench/cuda/gpu_case.hpp"
#include "kernels/many_ops.hpp"

namespace gradsieve::bench {
namespace {

constexpr std::uint64_t kBlockElements = 256;
constexpr std::uint64_t kAlignElements = 64;
constexpr std::array<std::uint64_t, 8> kTensorElements = {1728,   64,  36864, 64,
                                                          147456, 128, 1000,  2359296};

struct Piece {
  std::uint64_t first;
  std::uint64_t num_elements;
  std::uint64_t first_scale;
};

std::vector<Piece> pieces_of(std::uint64_t num_elements) {
  std::vector<Piece> pieces;
  std::uint64_t first = 0;
  std::uint64_t first_scale = 0;
  for (std::size_t i = 0; first < num_elements; ++i) {
    std::uint64_t const wanted = kTensorElements[i % kTensorElements.size()];
    std::uint64_t const count = std::min(wanted, num_elements - first);
    pieces.push_back({first, count, first_scale});
    first += (count + kAlignElements - 1) / kAlignElements * kAlignElements;
    first_scale += (count + kBlockElements - 1) / kBlockElements;
  }
  return pieces;
}

/// The arrays that all segments point into, and the table.
struct Tensors {
  std::uint64_t num_elements;
  std::vector<Piece> pieces;
  std::uint64_t num_runs;
  std::uint64_t block_elements;
  DType dtype;
  std::size_t g, e, codes, scales, table, runs;

  Tensors(GpuCase& c, std::uint64_t n, std::uint64_t block, bool codes_are_read)
      : num_elements(n), pieces(pieces_of(n)), block_elements(block), dtype(c.dtype) {
    std::vector<kernels::Segment> segments = sizes();
    num_runs = kernels::plan_runs(segments, block).size();
    std::uint64_t const num_scales =
        pieces.back().first_scale +
        (pieces.back().num_elements + kBlockElements - 1) / kBlockElements;
    g = c.gradient(n);
    e = c.sums(n);
    codes = codes_are_read ? c.input({Content::codes}, n) : c.output(n);
    scales = codes_are_read ? c.input({Content::scales}, 4 * num_scales) : c.output(4 * num_scales);
    table = c.prepared(segments.size() * sizeof(kernels::Segment));
    runs = c.prepared(num_runs * sizeof(std::uint32_t));
    c.prepare = [tensors = *this](ExecContext const& ctx, Arrays const& a) {
      tensors.write_table(ctx, a);
    };
  }

  [[nodiscard]] kernels::SegmentTable view(Arrays const& a) const {
    return {a.as<kernels::Segment>(table), a.as<std::uint32_t>(runs)};
  }

 private:
  [[nodiscard]] std::vector<kernels::Segment> sizes() const {
    std::vector<kernels::Segment> segments(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      segments[i].num_elements = pieces[i].num_elements;
      segments[i].key = {static_cast<std::uint32_t>(i), 5};
    }
    return segments;
  }
  void write_table(ExecContext const& ctx, Arrays const& a) const {
    std::vector<kernels::Segment> segments = sizes();
    for (std::size_t i = 0; i < segments.size(); ++i) {
      std::uint64_t const first = pieces[i].first;
      segments[i].gradient = a.data(g) + first * size_of(dtype);
      segments[i].residual_in = a.as<float>(e).data() + first;
      segments[i].residual_out = a.as<float>(e).data() + first;
      segments[i].accumulator = a.as<float>(e).data() + first;
      segments[i].codes = a.data(codes) + first;
      segments[i].scales = a.as<float>(scales).data() + pieces[i].first_scale;
    }
    std::vector<std::uint32_t> const of_run = kernels::plan_runs(segments, block_elements);
    a.write(ctx, table, segments);
    a.write(ctx, runs, of_run);
  }
};

void add_compensate(CaseList& list, DType dtype) {
  auto const size = static_cast<double>(size_of(dtype));
  GpuCase c = {.kernel = "compensate_many",
               .dtype = dtype,
               .traffic = {std::to_string(size_of(dtype)) + " g + 8 e", size + 8}};
  Tensors const t(c, list.num_elements, 1, false);
  c.variant = std::to_string(t.pieces.size()) + " tensors";
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    raise_flags(ctx, kernels::compensate_many(ctx, t.view(a), dtype, 1.0F));
  };
  list.add(std::move(c));
}

void add_quantize(CaseList& list, DType dtype) {
  auto const size = static_cast<double>(size_of(dtype));
  GpuCase c = {.kernel = "quantize_many",
               .dtype = dtype,
               .traffic = {std::to_string(size_of(dtype)) + " g + 8 e + 1 + 4 / 256",
                           size + 9 + 4.0 / kBlockElements}};
  Tensors const t(c, list.num_elements, kBlockElements, false);
  c.variant = "8 bits, block 256, " + std::to_string(t.pieces.size()) + " tensors";
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    raise_flags(ctx, kernels::quantize_many(ctx, t.view(a), dtype, 1.0F, 8, kBlockElements,
                                            kernels::Rounding::nearest, std::uint64_t{3}));
  };
  list.add(std::move(c));
}

void add_dequantize(CaseList& list) {
  GpuCase c = {.kernel = "dequantize_add_many",
               .traffic = {"8 sum + 1 + 4 / 256", 9 + 4.0 / kBlockElements}};
  Tensors const t(c, list.num_elements, kBlockElements, true);
  c.variant = "8 bits, block 256, " + std::to_string(t.pieces.size()) + " tensors";
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::dequantize_add_many(ctx, t.view(a), 8, kBlockElements, 0.25F);
  };
  list.add(std::move(c));
}

}  // namespace

void add_many_cases(CaseList& list) {
  for (DType const dtype : list.dtypes) {
    add_compensate(list, dtype);
    add_quantize(list, dtype);
  }
  add_dequantize(list);
}

}  // namespace gradsieve::bench
