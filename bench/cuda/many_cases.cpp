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

constexpr int kBits = 8;

/// Of bodies of `sign`, whose two planes follow a header.
constexpr std::size_t kSignPlanes = 0;

/// What a body of so many elements takes, and where in it the scales begin.
std::size_t scales_begin(std::uint64_t count, std::size_t value_bytes) {
  auto const n = static_cast<std::size_t>(count);
  std::size_t const codes = value_bytes == kSignPlanes
                                ? kernels::kSignHeader.size() + 2 * ((n + 7) / 8)
                                : n * value_bytes;
  return (codes + 3) / 4 * 4;
}
std::size_t scale_bytes(std::uint64_t count) {
  return static_cast<std::size_t>((count + kBlockElements - 1) / kBlockElements) * sizeof(float);
}

/// Values of `value_bytes`, or kSignPlanes; with scales, codes of a byte and their scales behind
/// them.
std::vector<kernels::Segment> segments_of(std::uint64_t num_elements, std::size_t value_bytes,
                                          bool has_scales) {
  std::vector<kernels::Segment> segments;
  std::uint64_t first = 0;
  std::size_t body = 0;
  for (std::size_t i = 0; first < num_elements; ++i) {
    std::uint64_t const wanted = kTensorElements[i % kTensorElements.size()];
    std::uint64_t const count = std::min(wanted, num_elements - first);
    std::size_t const scales = body + scales_begin(count, value_bytes);
    segments.push_back({.in_gradient = first,
                        .in_residual = first,
                        .codes_begin = body,
                        .scales_begin = scales,
                        .num_elements = count,
                        .key = {static_cast<std::uint32_t>(i), 5}});
    first += (count + kAlignElements - 1) / kAlignElements * kAlignElements;
    body = (scales + (has_scales ? scale_bytes(count) : 0) + 15) / 16 * 16;
  }
  return segments;
}

/// The table of the segments, and what it takes to fill the arrays that they lie in.
struct Tensors {
  std::vector<kernels::Segment> segments;
  std::vector<std::uint32_t> segment_of_run;
  std::size_t body_bytes;
  std::size_t table, runs;

  Tensors(GpuCase& c, std::uint64_t n, std::uint64_t block, std::size_t value_bytes)
      : segments(segments_of(n, value_bytes, block > 1)),
        segment_of_run(kernels::plan_runs(segments, block)),
        body_bytes(segments.back().scales_begin +
                   (block > 1 ? scale_bytes(segments.back().num_elements) : 0)),
        table(c.prepared(segments.size() * sizeof(kernels::Segment))),
        runs(c.prepared(segment_of_run.size() * sizeof(std::uint32_t))) {}

  void write(ExecContext const& ctx, Arrays const& a) const {
    a.write(ctx, table, segments);
    a.write(ctx, runs, segment_of_run);
  }
  [[nodiscard]] kernels::SegmentTable view(Arrays const& a) const {
    return {a.as<kernels::Segment>(table).first(segments.size()),
            a.as<std::uint32_t>(runs).first(segment_of_run.size())};
  }
  [[nodiscard]] std::string text() const { return std::to_string(segments.size()) + " tensors"; }

  /// Any codes (of `sign` whole bytes of a plane without zeros), each with a scale of its own
  /// block.
  [[nodiscard]] std::vector<std::byte> some_bodies(std::size_t value_bytes) const {
    std::vector<std::byte> bodies(body_bytes);
    for (kernels::Segment const& segment : segments) {
      bool const is_sign = value_bytes == kSignPlanes;
      std::uint64_t const begin = segment.codes_begin + (is_sign ? kernels::kSignHeader.size() : 0);
      std::uint64_t const count = is_sign ? segment.num_elements / 8 : segment.num_elements;
      if (is_sign) bodies[segment.codes_begin] = kernels::kSignHeader[0];
      for (std::uint64_t i = 0; i < count; ++i)
        bodies[begin + i] = static_cast<std::byte>(i * 2654435761U >> 24);
      for (std::size_t at = 0; at < scale_bytes(segment.num_elements); at += sizeof(float)) {
        float const scale = 0.001F * static_cast<float>(at % 97 + 1);
        std::memcpy(bodies.data() + segment.scales_begin + at, &scale, sizeof scale);
      }
    }
    return bodies;
  }
};

/// The arrays of an encode: gradient, residual in place, bodies.
struct Encoded {
  std::size_t g, e, bodies;
  std::uint64_t num_elements;
  DType dtype;

  Encoded(GpuCase& c, std::uint64_t n, std::size_t body_bytes)
      : g(c.gradient(n)),
        e(c.sums(n)),
        bodies(c.output(body_bytes)),
        num_elements(n),
        dtype(c.dtype) {}

  [[nodiscard]] kernels::EncodedArrays view(Arrays const& a) const {
    float* const residual = a.as<float>(e).data();
    return {.gradient = {a.data(g), num_elements, dtype},
            .residual_in = residual,
            .residual_out = residual,
            .carry = 1.0F,
            .bodies = a.data(bodies)};
  }
};

void add_encode_values(CaseList& list, DType dtype) {
  auto const size = static_cast<double>(size_of(dtype));
  GpuCase c = {.kernel = "encode_values_many",
               .dtype = dtype,
               .traffic = {std::to_string(size_of(dtype)) + " g + 8 e + 2", size + 10}};
  Tensors const t(c, list.num_elements, 1, 2);
  Encoded const arrays(c, list.num_elements, t.body_bytes);
  c.variant = "bf16, " + t.text();
  c.prepare = [=](ExecContext const& ctx, Arrays const& a) { t.write(ctx, a); };
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    raise_flags(ctx, kernels::encode_values_many(ctx, t.view(a), arrays.view(a), DType::bf16,
                                                 kernels::Rounding::nearest, std::uint64_t{3}));
  };
  list.add(std::move(c));
}

void add_values(CaseList& list) {
  GpuCase c = {.kernel = "add_values_many", .traffic = {"8 sum + 4", 12}};
  std::uint64_t const n = list.num_elements;
  Tensors const t(c, n, 1, sizeof(float));
  std::size_t const sums = c.sums(n);
  std::size_t const bodies = c.floats(t.body_bytes / sizeof(float), 4);
  c.variant = "f32, " + t.text();
  c.prepare = [=](ExecContext const& ctx, Arrays const& a) { t.write(ctx, a); };
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::add_values_many(ctx, t.view(a),
                             {a.data(bodies), a.as<float>(sums).data(), false, 0.25F}, DType::f32);
  };
  list.add(std::move(c));
}

void add_quantize(CaseList& list, DType dtype) {
  auto const size = static_cast<double>(size_of(dtype));
  GpuCase c = {.kernel = "quantize_many",
               .dtype = dtype,
               .traffic = {std::to_string(size_of(dtype)) + " g + 8 e + 1 + 4 / 256",
                           size + 9 + 4.0 / kBlockElements}};
  Tensors const t(c, list.num_elements, kBlockElements, 1);
  Encoded const arrays(c, list.num_elements, t.body_bytes);
  c.variant = "8 bits, block 256, " + t.text();
  c.prepare = [=](ExecContext const& ctx, Arrays const& a) { t.write(ctx, a); };
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    raise_flags(ctx, kernels::quantize_many(ctx, t.view(a), arrays.view(a), kBits, kBlockElements,
                                            kernels::Rounding::nearest, std::uint64_t{3}));
  };
  list.add(std::move(c));
}

void add_dequantize(CaseList& list) {
  GpuCase c = {.kernel = "dequantize_add_many",
               .traffic = {"8 sum + 1 + 4 / 256", 9 + 4.0 / kBlockElements}};
  Tensors const t(c, list.num_elements, kBlockElements, 1);
  std::size_t const sums = c.sums(list.num_elements);
  std::size_t const bodies = c.prepared(t.body_bytes);
  c.variant = "8 bits, block 256, " + t.text();
  c.prepare = [=](ExecContext const& ctx, Arrays const& a) {
    t.write(ctx, a);
    a.write(ctx, bodies, t.some_bodies(1));
  };
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    static_cast<void>(kernels::dequantize_add_many(
        ctx, t.view(a), {a.data(bodies), a.as<float>(sums).data(), false, 0.25F}, kBits,
        kBlockElements));
  };
  list.add(std::move(c));
}

void add_sign(CaseList& list, DType dtype) {
  auto const size = static_cast<double>(size_of(dtype));
  GpuCase c = {.kernel = "sign_many",
               .dtype = dtype,
               .traffic = {std::to_string(size_of(dtype)) + " g + 8 e + 1/4 + 4 / 256",
                           size + 8.25 + 4.0 / kBlockElements}};
  Tensors const t(c, list.num_elements, kBlockElements, kSignPlanes);
  Encoded const arrays(c, list.num_elements, t.body_bytes);
  c.variant = "block 256, " + t.text();
  c.prepare = [=](ExecContext const& ctx, Arrays const& a) { t.write(ctx, a); };
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    raise_flags(ctx, kernels::sign_many(ctx, t.view(a), arrays.view(a), kBlockElements));
  };
  list.add(std::move(c));
}

void add_sign_add(CaseList& list) {
  GpuCase c = {.kernel = "sign_add_many",
               .traffic = {"8 sum + 1/4 + 4 / 256", 8.25 + 4.0 / kBlockElements}};
  Tensors const t(c, list.num_elements, kBlockElements, kSignPlanes);
  std::size_t const sums = c.sums(list.num_elements);
  std::size_t const bodies = c.prepared(t.body_bytes);
  c.variant = "block 256, " + t.text();
  c.prepare = [=](ExecContext const& ctx, Arrays const& a) {
    t.write(ctx, a);
    a.write(ctx, bodies, t.some_bodies(kSignPlanes));
  };
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    static_cast<void>(kernels::sign_add_many(
        ctx, t.view(a), {a.data(bodies), a.as<float>(sums).data(), false, 0.25F}, kBlockElements));
  };
  list.add(std::move(c));
}

}  // namespace

void add_many_cases(CaseList& list) {
  for (DType const dtype : list.dtypes) {
    add_encode_values(list, dtype);
    add_quantize(list, dtype);
    add_sign(list, dtype);
  }
  add_values(list);
  add_dequantize(list);
  add_sign_add(list);
}

}  // namespace gradsieve::bench
