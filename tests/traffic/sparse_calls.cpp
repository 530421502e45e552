// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops.hpp"
#include "tests/traffic/traffic_calls.hpp"

namespace gradsieve::testing {
namespace {

constexpr std::size_t kCount = kTrafficElements;

/// One per cent of the elements, or of the blocks.
struct Sparse {
  std::size_t num_indices;
  OnDevice<std::uint32_t> indices;
  OnDevice<float> values;
  OnDevice<float> x;

  Sparse(CudaStep& step, Shape shape, std::uint64_t granularity)
      : num_indices(kCount / granularity / 100),
        indices(step, chosen(kCount / granularity, num_indices)),
        values(step, std::vector<float>(num_indices * granularity, 0.5F)),
        x(step, make_gradient(shape, kCount, 2)) {}

  static std::vector<std::uint32_t> chosen(std::uint64_t universe, std::size_t k) {
    std::vector<std::uint32_t> indices(k);
    kernels::ref::randomk({}, {1, 2}, 3, universe, indices);
    return indices;
  }
};

void add(std::vector<TrafficCall>& calls, std::string name, std::uint64_t granularity,
         std::function<void(ExecContext const&, Sparse const&)> run) {
  calls.push_back({.name = name + ", granularity " + std::to_string(granularity),
                   .kind = granularity == 1 ? "indexed" : "streaming",
                   .shapes = {"heavy_tailed"},
                   .run = [=](CudaStep& step, Shape shape) {
                     run(step.context(), Sparse(step, shape, granularity));
                   }});
}

}  // namespace

void add_sparse_calls(std::vector<TrafficCall>& calls) {
  for (std::uint64_t const granularity : {1U, 256U}) {
    add(calls, "take 1 %", granularity, [=](ExecContext const& ctx, Sparse const& s) {
      kernels::cuda::take(ctx, s.indices.span(), granularity, s.x.span(), s.values.span());
    });
    add(calls, "scatter_add 1 %", granularity, [=](ExecContext const& ctx, Sparse const& s) {
      kernels::cuda::scatter_add(ctx, s.indices.span(), granularity, s.values.span(), 0.5F,
                                 s.x.span());
    });
  }
  add(calls, "check_indices 1 %", 1, [](ExecContext const& ctx, Sparse const& s) {
    kernels::cuda::check_indices(ctx, s.indices.span(), kCount);
  });
}

}  // namespace gradsieve::testing
