// SPDX-License-Identifier: Apache-2.0
// Block quantizers and signs, with feedback and without.
#include <span>

#include "bench/cuda/gpu_case.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::bench {
namespace {

using kernels::Rounding;

std::uint64_t blocks_of(std::uint64_t n, std::uint64_t block_elements) {
  return (n + block_elements - 1) / block_elements;
}
std::uint64_t code_bytes(std::uint64_t n, int bits) { return bits == 8 ? n : (n + 1) / 2; }

struct Format {
  int bits;
  std::uint64_t block_elements;
  Rounding rounding = Rounding::nearest;

  [[nodiscard]] std::string text() const {
    return std::to_string(bits) + " bits, block " + std::to_string(block_elements) +
           (rounding == Rounding::nearest ? "" : ", stochastic");
  }
  /// Beside the payload.
  [[nodiscard]] Traffic traffic(std::string const& of_data, double data_bytes) const {
    return {of_data + " + bits / 8 + 4 / block",
            data_bytes + bits / 8.0 + 4 / static_cast<double>(block_elements)};
  }
};

void add_quantize(CaseList& list, Format format) {
  std::uint64_t const n = list.num_elements;
  GpuCase c = {
      .kernel = "quantize", .variant = format.text(), .traffic = format.traffic("4 c + 4 e'", 8)};
  std::size_t const corrected = c.floats(n, 1);
  std::size_t const codes = c.output(code_bytes(n, format.bits));
  std::size_t const scales = c.output(4 * blocks_of(n, format.block_elements));
  std::size_t const residual = c.output(4 * n);
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::quantize(ctx, a.as<float>(corrected), format.bits, format.block_elements,
                      format.rounding, {{1, 2}, 3, 0}, a.bytes(codes), a.as<float>(scales),
                      a.as<float>(residual));
  };
  list.add(std::move(c));
}

void add_fused(CaseList& list, DType dtype, Format format) {
  std::uint64_t const n = list.num_elements;
  std::string const of_data = std::to_string(size_of(dtype)) + " g + 8 e";
  GpuCase c = {.kernel = "quantize_fused",
               .variant = format.text(),
               .dtype = dtype,
               .traffic = format.traffic(of_data, static_cast<double>(size_of(dtype)) + 8)};
  std::size_t const g = c.gradient(n);
  std::size_t const e = c.sums(n);
  std::size_t const codes = c.output(code_bytes(n, format.bits));
  std::size_t const scales = c.output(4 * blocks_of(n, format.block_elements));
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    raise_flags(ctx, kernels::quantize_fused(ctx, {a.data(g), n, dtype},
                                             {a.as<float>(e), a.as<float>(e), 1.0F}, format.bits,
                                             format.block_elements, format.rounding, {{1, 2}, 3, 0},
                                             a.bytes(codes), a.as<float>(scales)));
  };
  list.add(std::move(c));
}

void add_dequantize(CaseList& list, Format format) {
  std::uint64_t const n = list.num_elements;
  GpuCase c = {
      .kernel = "dequantize_add", .variant = format.text(), .traffic = format.traffic("8 sum", 8)};
  std::size_t const codes = c.input({Content::codes}, code_bytes(n, format.bits));
  std::size_t const scales = c.input({Content::scales}, 4 * blocks_of(n, format.block_elements));
  std::size_t const sum = c.sums(n);
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::dequantize_add(ctx, a.bytes(codes), a.data(scales), format.bits, format.block_elements,
                            0.25F, a.as<float>(sum));
  };
  list.add(std::move(c));
}

void add_sign(CaseList& list, std::uint64_t block_elements, bool is_fused) {
  std::uint64_t const n = list.num_elements;
  double const payload = 0.25 + 4 / static_cast<double>(block_elements);
  GpuCase c = {
      .kernel = is_fused ? "sign_fused" : "sign",
      .variant = "block " + std::to_string(block_elements),
      .traffic = {is_fused ? "4 g + 8 e + 2 / 8 + 4 / block" : "4 c + 4 e' + 2 / 8 + 4 / block",
                  (is_fused ? 12 : 8) + payload}};
  std::size_t const g = is_fused ? c.gradient(n) : 0;
  std::size_t const e = c.sums(n);
  std::size_t const signs = c.output((n + 7) / 8);
  std::size_t const zeros = c.output((n + 7) / 8);
  std::size_t const scales = c.output(4 * blocks_of(n, block_elements));
  std::size_t const any_zero = c.in_out({}, 4);
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    std::span<float> const residual = a.as<float>(e);
    std::uint32_t* const found = a.as<std::uint32_t>(any_zero).data();
    if (!is_fused) {
      kernels::sign(ctx, residual, block_elements, a.bytes(signs), a.bytes(zeros),
                    a.as<float>(scales), residual, found);
      return;
    }
    raise_flags(ctx, kernels::sign_fused(ctx, {a.data(g), n, DType::f32},
                                         {residual, residual, 1.0F}, block_elements, a.bytes(signs),
                                         a.bytes(zeros), a.as<float>(scales), found));
  };
  list.add(std::move(c));
}

void add_sign_add(CaseList& list, std::uint64_t block_elements) {
  std::uint64_t const n = list.num_elements;
  std::uint64_t const plane_bytes = (n + 7) / 8;
  GpuCase add = {
      .kernel = "sign_add",
      .variant = "block " + std::to_string(block_elements),
      .traffic = {"8 sum + 2 / 8 + 4 / block", 8.25 + 4 / static_cast<double>(block_elements)}};
  std::size_t const sent_signs = add.input({Content::codes, DType::f32, 1}, plane_bytes);
  std::size_t const sent_zeros = add.input({Content::codes, DType::f32, 2}, plane_bytes);
  std::size_t const sent_scales = add.input({Content::scales}, 4 * blocks_of(n, block_elements));
  std::size_t const sum = add.sums(n);
  add.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::sign_add(ctx, a.data(sent_signs), a.data(sent_zeros), a.data(sent_scales),
                      block_elements, 0.25F, a.as<float>(sum));
  };
  list.add(std::move(add));
}

}  // namespace

void add_quantizer_cases(CaseList& list) {
  constexpr Format kBytes = {8, 256};
  constexpr Format kNibbles = {4, 256};
  add_quantize(list, kBytes);
  for (DType const dtype : list.dtypes) add_fused(list, dtype, kBytes);
  add_fused(list, DType::f32, {8, 256, Rounding::stochastic});
  add_fused(list, DType::f32, {8, 1024});
  add_fused(list, DType::f32, kNibbles);
  add_fused(list, DType::f32, {4, 64, Rounding::stochastic});
  add_dequantize(list, kBytes);
  add_dequantize(list, kNibbles);
  add_sign(list, 1024, false);
  add_sign(list, 1024, true);
  add_sign_add(list, 1024);
}

}  // namespace gradsieve::bench
