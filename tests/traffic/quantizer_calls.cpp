// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops.hpp"
#include "tests/traffic/traffic_calls.hpp"

namespace gradsieve::testing {
namespace {

using kernels::Rounding;
constexpr std::size_t kCount = kTrafficElements;

struct Quantized {
  OnDevice<std::byte> codes;
  OnDevice<float> scales;
  OnDevice<float> values;

  Quantized(CudaStep& step, Shape shape, int bits, std::uint64_t block_elements)
      : codes(step, std::vector<std::byte>(kCount * static_cast<unsigned>(bits) / 8)),
        scales(step, std::vector<float>(kCount / block_elements, 0.5F)),
        values(step, make_gradient(shape, kCount, 2)) {}
};

void add_quantizer(std::vector<TrafficCall>& calls, int bits, std::uint64_t block_elements) {
  double const payload =
      static_cast<double>(kCount) * bits / 8 + 4.0 * static_cast<double>(kCount / block_elements);
  std::string const text = std::to_string(bits) + " bits, block " + std::to_string(block_elements);
  for (Rounding const rounding : {Rounding::nearest, Rounding::stochastic}) {
    bool const is_nearest = rounding == Rounding::nearest;
    calls.push_back(
        {.name = "quantize_fused " + text + (is_nearest ? "" : ", stochastic"),
         .kind = "quantizer",
         .payload_bytes = payload,
         .shapes = is_nearest ? std::vector<std::string>{"heavy_tailed", "ties", "all_zero"}
                              : std::vector<std::string>{"heavy_tailed"},
         .run = [=](CudaStep& step, Shape shape) {
           Quantized const q(step, shape, bits, block_elements);
           OnDevice<float> const gradient(step, make_gradient(shape, kCount, 1));
           kernels::cuda::quantize_fused(step.context(), {gradient.data(), kCount, DType::f32},
                                         {q.values.span(), q.values.span(), 1.0F}, bits,
                                         block_elements, rounding, {{1, 2}, 3, 0}, q.codes.span(),
                                         q.scales.span());
         }});
  }
  calls.push_back({.name = "dequantize_add " + text,
                   .kind = "dequantize",
                   .payload_bytes = payload,
                   .shapes = {"heavy_tailed"},
                   .run = [=](CudaStep& step, Shape shape) {
                     Quantized const q(step, shape, bits, block_elements);
                     kernels::cuda::dequantize_add(step.context(), q.codes.span(),
                                                   std::as_bytes(q.scales.span()).data(), bits,
                                                   block_elements, 0.5F, q.values.span());
                   }});
}

/// Of what was compensated before.
void add_plain(std::vector<TrafficCall>& calls, int bits, std::uint64_t block_elements) {
  calls.push_back({.name = "quantize " + std::to_string(bits) + " bits, block " +
                           std::to_string(block_elements),
                   .kind = "streaming",
                   .shapes = {"heavy_tailed"},
                   .run = [=](CudaStep& step, Shape shape) {
                     Quantized const q(step, shape, bits, block_elements);
                     kernels::cuda::quantize(step.context(), q.values.span(), bits, block_elements,
                                             Rounding::nearest, {{1, 2}, 3, 0}, q.codes.span(),
                                             q.scales.span(), q.values.span());
                   }});
}

void add_sign(std::vector<TrafficCall>& calls, std::uint64_t block_elements) {
  double const scale_bytes = 4.0 * static_cast<double>(kCount / block_elements);
  calls.push_back({.name = "sign, block " + std::to_string(block_elements),
                   .kind = "streaming",
                   .payload_bytes = 2.0 * static_cast<double>(kCount) / 8 + scale_bytes,
                   .shapes = {"heavy_tailed", "ties", "all_zero"},
                   .run = [=](CudaStep& step, Shape shape) {
                     Quantized const q(step, shape, 1, block_elements);
                     OnDevice<std::byte> const zeros(step, std::vector<std::byte>(kCount / 8));
                     OnDevice<std::uint32_t> const any_zero(step, std::vector<std::uint32_t>{0});
                     kernels::cuda::sign(step.context(), q.values.span(), block_elements,
                                         q.codes.span(), zeros.span(), q.scales.span(),
                                         q.values.span(), any_zero.data());
                   }});
  calls.push_back({.name = "sign_fused, block " + std::to_string(block_elements),
                   .kind = "quantizer",
                   .payload_bytes = 2.0 * static_cast<double>(kCount) / 8 + scale_bytes,
                   .shapes = {"heavy_tailed", "ties", "all_zero"},
                   .run = [=](CudaStep& step, Shape shape) {
                     Quantized const q(step, shape, 1, block_elements);
                     OnDevice<std::byte> const zeros(step, std::vector<std::byte>(kCount / 8));
                     OnDevice<std::uint32_t> const any_zero(step, std::vector<std::uint32_t>{0});
                     OnDevice<float> const gradient(step, make_gradient(shape, kCount, 1));
                     kernels::cuda::sign_fused(
                         step.context(), {gradient.data(), kCount, DType::f32},
                         {q.values.span(), q.values.span(), 1.0F}, block_elements, q.codes.span(),
                         zeros.span(), q.scales.span(), any_zero.data());
                   }});
  calls.push_back({.name = "sign_add, block " + std::to_string(block_elements),
                   .kind = "dequantize",
                   .payload_bytes = 2.0 * static_cast<double>(kCount) / 8 + scale_bytes,
                   .shapes = {"heavy_tailed"},
                   .run = [=](CudaStep& step, Shape shape) {
                     Quantized const q(step, shape, 1, block_elements);
                     OnDevice<std::byte> const zeros(step, std::vector<std::byte>(kCount / 8));
                     kernels::cuda::sign_add(step.context(), q.codes.data(), zeros.data(),
                                             std::as_bytes(q.scales.span()).data(), block_elements,
                                             0.5F, q.values.span());
                   }});
}

}  // namespace

void add_quantizer_calls(std::vector<TrafficCall>& calls) {
  add_quantizer(calls, 8, 256);
  add_quantizer(calls, 8, 1024);
  add_quantizer(calls, 4, 64);
  add_quantizer(calls, 4, 256);
  add_plain(calls, 8, 256);
  add_sign(calls, 1024);
  add_sign(calls, 4096);
}

}  // namespace gradsieve::testing
