// SPDX-License-Identifier: Apache-2.0
// MPI through the module: a C11 trainer gets the bits that ranks as threads give.
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>
#include <mpi.h>

#include "tests/bindings/c_training.hpp"

namespace gradsieve::testing {
namespace {

int mpi_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

int mpi_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

Case training() {
  return {"",
          "topk(density=0.05) | int8 ; feedback=residual",
          mpi_size(),
          Rollback::merge,
          {2000, 33, 1, 4096}};
}

CommPtr world(char const* module = GSV_MPI_MODULE) {
  MPI_Comm const communicator = MPI_COMM_WORLD;
  gsvComm_t comm = nullptr;
  EXPECT_GSV(gsvCommInitMpi(&comm, &communicator, module));
  return CommPtr(comm);
}

TEST(CMpiTest, TrainsWithTheBitsOfThreads) {
  for (char const* const spec :
       {"none", "topk(density=0.05) | int8 ; feedback=residual", "int4 ; feedback=residual"}) {
    Case given = training();
    given.spec = spec;
    ContextPtr const context = make_context();
    CommPtr const comm = world();

    Outcome const outcome = train_in_c(given, comm.get(), context.get());

    Outcome const expected = train_in_c(given)[static_cast<std::size_t>(mpi_rank())];
    expect_same_bits(expected.results, outcome.results, std::string(spec) + ", results");
    expect_same_bits(expected.residuals, outcome.residuals, std::string(spec) + ", residuals");
  }
}

TEST(CMpiTest, TakesAFortranHandleOfASubgroup) {
  MPI_Comm reversed = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -mpi_rank(), &reversed);
  gsvComm_t comm = nullptr;
  ASSERT_GSV(gsvCommInitMpiFortran(&comm, MPI_Comm_c2f(reversed), GSV_MPI_MODULE));
  CommPtr const owned(comm);
  MPI_Comm_free(&reversed);  // it was duplicated

  std::int32_t rank = -1;
  std::int32_t world_size = -1;
  EXPECT_GSV(gsvCommUserRank(comm, &rank));
  EXPECT_GSV(gsvCommCount(comm, &world_size));

  EXPECT_EQ(rank, mpi_size() - 1 - mpi_rank());
  EXPECT_EQ(world_size, mpi_size());
  HookPtr const hook = make_hook(comm, make_context().get(), "none");
  ASSERT_GSV(plan_one(hook.get(), 3));
  std::vector<float> gradient(3, static_cast<float>(rank));
  gsvStepResult_t outcome = GSV_INIT(gsvStepResult_t);
  EXPECT_GSV(step_one(hook.get(), 0, gradient, outcome));
  EXPECT_EQ(gradient[2], static_cast<float>(mpi_size() - 1) / 2.0F);
}

TEST(CMpiTest, FindsTheModuleByTheEnvironment) {
  ::setenv("GRADSIEVE_MPI_MODULE", GSV_MPI_MODULE, 1);
  gsvComm_t comm = nullptr;
  EXPECT_GSV(gsvCommInitMpi(&comm, nullptr, nullptr));
  gsvCommDestroy(comm);
  ::setenv("GRADSIEVE_MPI_MODULE", "/nowhere/libgsv_mpi.so", 1);
  EXPECT_EQ(gsvCommInitMpi(&comm, nullptr, nullptr), gsvIoError);
  ::unsetenv("GRADSIEVE_MPI_MODULE");
  EXPECT_NE(std::string(gsvGetLastError()).find("/nowhere/libgsv_mpi.so"), std::string::npos)
      << gsvGetLastError();
}

TEST(CMpiTest, RefusesWhatIsNoModuleAndNoCommunicator) {
  gsvComm_t comm = nullptr;
  EXPECT_EQ(gsvCommInitMpi(&comm, nullptr, "libzstd.so.1"), gsvIoError);
  EXPECT_NE(std::string(gsvGetLastError()).find("gsvMpiTransport"), std::string::npos)
      << gsvGetLastError();
  MPI_Comm const none = MPI_COMM_NULL;
  EXPECT_EQ(gsvCommInitMpi(&comm, &none, GSV_MPI_MODULE), gsvInvalidArgument);
  EXPECT_NE(std::string(gsvGetLastError()).find("MPI_COMM_NULL"), std::string::npos)
      << gsvGetLastError();
  EXPECT_EQ(comm, nullptr);
}

}  // namespace
}  // namespace gradsieve::testing
