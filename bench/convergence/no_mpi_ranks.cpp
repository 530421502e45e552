// SPDX-License-Identifier: Apache-2.0
// In place of mpi_ranks.cpp where no MPI was found.
#include "bench/convergence/options.hpp"
#include "bench/convergence/ranks.hpp"

namespace gradsieve::study {

std::unique_ptr<Ranks> make_mpi_ranks(StudyPlan const&) {
  throw UsageError(
      "--transport mpi: this build has no MPI; expected --transport local, or a build with the "
      "Debian packages "
      "libopenmpi-dev and openmpi-bin");
}

}  // namespace gradsieve::study
