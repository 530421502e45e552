// SPDX-License-Identifier: Apache-2.0
// main() of a test that runs under mpirun: all ranks run the same tests in step, rank 0 reports,
// the others speak up only about failures, and every rank ends with the worst result of all.
#include <algorithm>
#include <iostream>

#include <gtest/gtest.h>
#include <mpi.h>

namespace {

class FailurePrinter final : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}

  void OnTestPartResult(testing::TestPartResult const& result) override {
    if (!result.failed()) return;
    std::cerr << "rank " << rank_ << ": "
              << (result.file_name() == nullptr ? "?" : result.file_name()) << ":"
              << result.line_number() << ": " << result.message() << std::endl;
  }

 private:
  int rank_;
};

}  // namespace

int main(int argc, char** argv) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  testing::InitGoogleTest(&argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(rank));
  }
  int result = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &result, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return result;
}
