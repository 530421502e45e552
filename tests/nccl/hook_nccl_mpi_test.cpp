// SPDX-License-Identifier: Apache-2.0
// The same hook with ranks that are processes under MPI: over NCCL, and over MPI itself.
#include <gtest/gtest.h>

#include "gradsieve/exchange.hpp"

#include "tests/distributed/cuda/hook_cuda_checks.hpp"
#include "tests/nccl/mpi_devices.hpp"
#include "tests/support/plugin_specs.hpp"

namespace gradsieve::testing {
namespace {

TEST_F(MpiDevices, EverySpecOverNcclGivesTheBitsOfTheCpu) {
  test::run_mpi_rank([&](Transport& host) {
    auto const device = make_nccl_transport(host);
    for (std::string const& spec : cuda_specs()) {
      // What goes through NCCL's own sum is added in another order than that of the ranks.
      bool const is_sum = make_chain(spec).compressor->round(0, {.num_elements = 100}).exchange ==
                          ExchangeKind::sum;
      EXPECT_EQ(check_like_cpu(*device, host, {.spec = spec, .steps = 5, .whole_numbers = is_sum}),
                "")
          << spec;
    }
  });
}

class HookProcesses : public MpiDevices, public ::testing::WithParamInterface<std::string> {};

TEST_P(HookProcesses, AGraphAsOnTheCpu) {
  test::run_mpi_rank([&](Transport& host) {
    auto const device = make_nccl_transport(host);
    EXPECT_EQ(check_graph_like_cpu(*device, host, {.spec = GetParam(), .steps = 22}), "");
  });
}

TEST_P(HookProcesses, OverMpiAsOnTheCpu) {
  test::run_mpi_rank([&](Transport& device) {
    test::run_mpi_rank([&](Transport& host) {
      EXPECT_EQ(check_like_cpu(device, host, {.spec = GetParam()}), "");
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Specs, HookProcesses,
                         ::testing::Values("topk(density=0.05) | int8 ; feedback=residual",
                                           "int4(block=64) ; feedback=residual"));

}  // namespace
}  // namespace gradsieve::testing
