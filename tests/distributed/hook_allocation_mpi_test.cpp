// SPDX-License-Identifier: Apache-2.0
// Promise 7 over MPI: of what is allocated in a steady step nothing is ours. MPI's own calls of
// malloc are not counted: the library is C, and we allocate by operator new and MemoryResource.
#include <gtest/gtest.h>

#include "tests/support/mpi_runner.hpp"
#include "tests/support/steady_allocations.hpp"

namespace gradsieve::testing {
namespace {

class HookAllocationOverMpi : public ::testing::TestWithParam<AllocationCase> {};

TEST_P(HookAllocationOverMpi, TenStepsAfterTwentyAllocateNothingOfOurs) {
  CountingResource resource;
  test::run_mpi_rank([&](Transport& transport) {
    SteadyCounts const counts =
        count_steady_steps(transport, GetParam(), resource, [] { MPI_Barrier(MPI_COMM_WORLD); });
    EXPECT_TRUE(counts.all_committed);
    EXPECT_EQ(counts.cxx_allocations, 0u);
    EXPECT_EQ(counts.resource_calls, 0u);
  });
  EXPECT_EQ(resource.num_live_bytes, 0u) << "what was taken was not given back";
}

INSTANTIATE_TEST_SUITE_P(Specs, HookAllocationOverMpi, ::testing::ValuesIn(allocation_cases()),
                         [](auto const& c) { return c.param.name; });

// What is expected to be 0 must be able to be something else.
TEST(CountedAllocations, OfOperatorNewAreSeenApartFromMalloc) {
  std::uint64_t const before = num_cxx_allocations();
  auto const owned = std::make_unique<std::vector<int>>(10);
  EXPECT_EQ(num_cxx_allocations() - before, 2u);
  void* const c_memory = std::malloc(100);
  EXPECT_NE(c_memory, nullptr);
  std::free(c_memory);
  EXPECT_EQ(num_cxx_allocations() - before, 2u) << owned->size();
}

}  // namespace
}  // namespace gradsieve::testing
