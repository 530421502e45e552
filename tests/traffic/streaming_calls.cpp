// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_step.hpp"
#include "kernels/ops.hpp"
#include "tests/traffic/traffic_calls.hpp"

namespace gradsieve::testing {
namespace {

constexpr std::size_t kCount = kTrafficElements;

/// A gradient of this type; halves are rounded by the kernel under test's own backend, ref.
OnDevice<std::byte> gradient_on_device(CudaStep& step, Shape shape, DType dtype,
                                       std::uint64_t seed = 1) {
  auto const values = make_gradient(shape, kCount, seed);
  std::vector<std::byte> bytes(kCount * size_of(dtype));
  kernels::ref::narrow({}, values, false, {bytes.data(), kCount, dtype});
  return {step, bytes};
}

OnDevice<float> floats_on_device(CudaStep& step, Shape shape, std::uint64_t seed) {
  return {step, make_gradient(shape, kCount, seed)};
}

void add(std::vector<TrafficCall>& calls, std::string name, std::size_t workspace_bytes,
         std::function<void(CudaStep&, Shape)> run) {
  calls.push_back({.name = std::move(name),
                   .kind = "streaming",
                   .workspace_bytes = workspace_bytes,
                   .shapes = {"heavy_tailed"},
                   .run = std::move(run)});
}

}  // namespace

void add_streaming_calls(std::vector<TrafficCall>& calls) {
  for (DType const dtype : {DType::f32, DType::f16, DType::bf16}) {
    std::string const type(dtype_name(dtype));
    add(calls, "compensate " + type, 0, [=](CudaStep& step, Shape shape) {
      auto const gradient = gradient_on_device(step, shape, dtype);
      auto const residual = floats_on_device(step, shape, 2);
      kernels::cuda::compensate(step.context(), {gradient.data(), kCount, dtype},
                                {residual.span(), residual.span(), 1.0F});
    });
    add(calls, "widen " + type, 0, [=](CudaStep& step, Shape shape) {
      auto const values = gradient_on_device(step, shape, dtype);
      auto const out = floats_on_device(step, shape, 2);
      kernels::cuda::widen(step.context(), {values.data(), kCount, dtype}, out.span());
    });
    add(calls, "narrow " + type, 0, [=](CudaStep& step, Shape shape) {
      auto const out = gradient_on_device(step, shape, dtype);
      auto const values = floats_on_device(step, shape, 2);
      kernels::cuda::narrow(step.context(), values.span(), true, {out.data(), kCount, dtype});
    });
    add(calls, "add_scaled " + type, 0, [=](CudaStep& step, Shape shape) {
      auto const values = gradient_on_device(step, shape, dtype);
      auto const sum = floats_on_device(step, shape, 2);
      kernels::cuda::add_scaled(step.context(), {values.data(), kCount, dtype}, 0.5F, sum.span());
    });
  }
  add(calls, "retain", 0, [](CudaStep& step, Shape shape) {
    auto const decoded = floats_on_device(step, shape, 1);
    auto const residual = floats_on_device(step, shape, 2);
    kernels::cuda::retain(step.context(), decoded.span(), residual.span());
  });
  add(calls, "store_bf16", 0, [](CudaStep& step, Shape shape) {
    auto const values = floats_on_device(step, shape, 1);
    auto const out = gradient_on_device(step, shape, DType::bf16);
    kernels::cuda::store_bf16(step.context(), values.span(), {{1, 2}, 3, 0},
                              {reinterpret_cast<BFloat16*>(out.data()), kCount});
  });
  add(calls, "scale", 0, [](CudaStep& step, Shape shape) {
    auto const values = floats_on_device(step, shape, 1);
    kernels::cuda::scale(step.context(), 0.5F, values.span());
  });
  add(calls, "sum_squares", kernels::sum_squares_workspace_bytes(kCount),
      [](CudaStep& step, Shape shape) {
        auto const values = floats_on_device(step, shape, 1);
        OnDevice<double> const sum(step, std::vector<double>{0});
        kernels::cuda::sum_squares(step.context(), values.span(), sum.data());
        step.wait();  // the workspace goes with the step, the sum with this scope
      });
  add(calls, "check_scales, one an element", 0, [](CudaStep& step, Shape) {
    OnDevice<float> const scales(step, std::vector<float>(kCount, 0.5F));
    kernels::cuda::check_scales(step.context(), std::as_bytes(scales.span()));
  });
  add(calls, "check_clear, a byte an element", 0, [](CudaStep& step, Shape) {
    OnDevice<std::byte> const bytes(step, std::vector<std::byte>(kCount));
    kernels::cuda::check_clear(step.context(), bytes.span(), {}, 0);
  });
  // With a word that says yes; one that says no is all that is read then.
  add(calls, "copy_if", 0, [](CudaStep& step, Shape shape) {
    OnDevice<std::uint32_t> const only_if(step, std::vector<std::uint32_t>{1});
    auto const from = floats_on_device(step, shape, 1);
    auto const to = floats_on_device(step, shape, 2);
    kernels::copy_if(step.context(), only_if.data(), std::as_bytes(from.span()),
                     std::as_writable_bytes(to.span()));
    step.wait();
  });
  for (DType const dtype : {DType::f32, DType::bf16}) {
    add(calls, "fill_if " + std::string(dtype_name(dtype)), 0, [=](CudaStep& step, Shape shape) {
      OnDevice<std::uint32_t> const only_if(step, std::vector<std::uint32_t>{1});
      auto const values = gradient_on_device(step, shape, dtype);
      kernels::fill_if(step.context(), only_if.data(), true,
                       TensorView(values.data(), kCount, dtype, Device::cuda));
      step.wait();
    });
  }
}

}  // namespace gradsieve::testing
