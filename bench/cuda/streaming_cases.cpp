// SPDX-License-Identifier: Apache-2.0
// The yardstick, and the kernels that read and write every element once.
#include <cuda_runtime_api.h>

#include "bench/cuda/gpu_case.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::bench {
namespace {

constexpr float kWeight = 0.25F;

std::string bytes_of(DType dtype) { return std::to_string(size_of(dtype)); }
double size_as_double(DType dtype) { return static_cast<double>(size_of(dtype)); }

void add_compensate(CaseList& list, DType dtype) {
  std::uint64_t const n = list.num_elements;
  GpuCase c = {.kernel = "compensate",
               .dtype = dtype,
               .traffic = {bytes_of(dtype) + " g + 4 e + 4 e'", size_as_double(dtype) + 8}};
  std::size_t const g = c.gradient(n);
  std::size_t const e = c.sums(n);
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    raise_flags(ctx, kernels::compensate(ctx, {a.data(g), n, dtype},
                                         {a.as<float>(e), a.as<float>(e), 1.0F}));
  };
  list.add(std::move(c));
}

void add_conversions(CaseList& list, DType dtype) {
  std::uint64_t const n = list.num_elements;
  GpuCase widen = {.kernel = "widen",
                   .dtype = dtype,
                   .traffic = {bytes_of(dtype) + " x + 4 out", size_as_double(dtype) + 4}};
  std::size_t const x = widen.gradient(n);
  std::size_t const out = widen.output(4 * n);
  widen.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::widen(ctx, {a.data(x), n, dtype}, a.as<float>(out));
  };
  list.add(std::move(widen));

  GpuCase narrow = {.kernel = "narrow",
                    .dtype = dtype,
                    .traffic = {"4 x + " + bytes_of(dtype) + " out", size_as_double(dtype) + 4}};
  std::size_t const wide = narrow.floats(n, 2);
  std::size_t const stored = narrow.output(size_of(dtype) * n);
  narrow.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::narrow(ctx, a.as<float>(wide), true, {a.data(stored), n, dtype});
  };
  list.add(std::move(narrow));
}

void add_add_scaled(CaseList& list, DType dtype) {
  std::uint64_t const n = list.num_elements;
  GpuCase c = {.kernel = "add_scaled",
               .dtype = dtype,
               .traffic = {bytes_of(dtype) + " x + 8 sum", size_as_double(dtype) + 8}};
  std::size_t const x = c.gradient(n);
  std::size_t const sum = c.sums(n);
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::add_scaled(ctx, {a.data(x), n, dtype}, kWeight, a.as<float>(sum));
  };
  list.add(std::move(c));
}

/// Those that take f32 alone.
void add_plain(CaseList& list) {
  std::uint64_t const n = list.num_elements;
  GpuCase retain = {.kernel = "retain", .traffic = {"4 decoded + 8 e", 12}};
  std::size_t const decoded = retain.floats(n, 1);
  std::size_t const e = retain.sums(n);
  retain.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::retain(ctx, a.as<float>(decoded), a.as<float>(e));
  };
  list.add(std::move(retain));

  GpuCase store = {.kernel = "store_bf16", .traffic = {"4 x + 2 out", 6}};
  std::size_t const x = store.floats(n, 1);
  std::size_t const out = store.output(2 * n);
  store.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::store_bf16(ctx, a.as<float>(x), {{1, 2}, 3, 0}, a.as<BFloat16>(out));
  };
  list.add(std::move(store));

  GpuCase scale = {.kernel = "scale", .traffic = {"8 x", 8}};
  std::size_t const scaled = scale.sums(n);
  scale.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::scale(ctx, kWeight, a.as<float>(scaled));
  };
  list.add(std::move(scale));

  GpuCase squares = {.kernel = "sum_squares",
                     .traffic = {"4 x", 4},
                     .workspace_bytes = kernels::sum_squares_workspace_bytes(n)};
  std::size_t const summed = squares.floats(n, 1);
  std::size_t const sum = squares.output(sizeof(double));
  squares.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::sum_squares(ctx, a.as<float>(summed), a.as<double>(sum).data());
  };
  list.add(std::move(squares));

  // Its time is that of a launch.
  GpuCase header = {.kernel = "write_header", .traffic = {"64 / n", 64 / static_cast<double>(n)}};
  std::size_t const payload = header.output(64);
  header.run = [=](ExecContext const& ctx, Arrays const& a) {
    PayloadHeader const fields = {.codec = 3, .plan_hash = 0x1234, .num_elements = n};
    kernels::write_header(ctx, fields, std::uint64_t{4000}, a.bytes(payload));
  };
  list.add(std::move(header));
}

void add_copy(CaseList& list, char const* name) {
  std::uint64_t const num_bytes = 4 * list.num_elements;
  GpuCase c = {.kernel = name,
               .variant = "cudaMemcpyAsync",
               .traffic = {"4 from + 4 to", 8},
               .has_ref = false};
  std::size_t const from = c.floats(list.num_elements, 1);
  std::size_t const to = c.output(num_bytes);
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    static_cast<void>(cudaMemcpyAsync(a.data(to), a.data(from), num_bytes, cudaMemcpyDeviceToDevice,
                                      static_cast<cudaStream_t>(ctx.stream.handle)));
  };
  list.add(std::move(c));
}

}  // namespace

void add_copy_cases(CaseList& list) {
  add_copy(list, "copy");
  add_copy(list, "copy_again");  // the A/A control
}

void add_planted_case(CaseList& list) {
  GpuCase c = {.kernel = "planted_mistake", .traffic = {"none", 0}};
  std::size_t const out = c.output(4);
  c.run = [out, count = 0](ExecContext const& ctx, Arrays const& a) mutable {
    if (ctx.backend != Backend::cuda) return;
    static_cast<void>(
        cudaMemsetAsync(a.data(out), ++count, 4, static_cast<cudaStream_t>(ctx.stream.handle)));
  };
  list.add(std::move(c));
}

void add_streaming_cases(CaseList& list) {
  for (DType const dtype : list.dtypes) {
    add_compensate(list, dtype);
    add_conversions(list, dtype);
    add_add_scaled(list, dtype);
  }
  add_plain(list);
}

}  // namespace gradsieve::bench
