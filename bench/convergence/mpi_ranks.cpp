// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include "gradsieve/mpi.hpp"

#include "bench/convergence/options.hpp"
#include "bench/convergence/ranks.hpp"

namespace gradsieve::study {
namespace {

// This process is one rank of MPI_COMM_WORLD, from here to the end of the program.
class MpiRanks final : public Ranks {
 public:
  explicit MpiRanks(StudyPlan const& plan) : plan_(plan) {
    int level = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) {
      throw UsageError(
          "--transport mpi: MPI did not start; expected a run such as `mpirun -np 4 "
          "gradsieve-study train ...`");
    }
    transport_ = make_mpi_transport(MPI_COMM_WORLD);
  }
  ~MpiRanks() override {
    transport_.reset();
    MPI_Finalize();
  }
  MpiRanks(MpiRanks const&) = delete;
  MpiRanks& operator=(MpiRanks const&) = delete;

  int world_size() const noexcept override { return transport_->world_size(); }
  bool has_first_rank() const noexcept override { return transport_->rank() == 0; }
  void abort(int exit_code) noexcept override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

  RunRecord run(RankBody const& body) override {
    Link link(*transport_, plan_);
    return body(link.transport());
  }

 private:
  StudyPlan const& plan_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace

std::unique_ptr<Ranks> make_mpi_ranks(StudyPlan const& plan) {
  return std::make_unique<MpiRanks>(plan);
}

}  // namespace gradsieve::study
