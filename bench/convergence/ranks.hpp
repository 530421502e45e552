// SPDX-License-Identifier: Apache-2.0
// Where ranks live: threads of this process, or processes under mpirun.
#pragma once

#include <functional>
#include <memory>

#include "gradsieve/transport.hpp"

#include "bench/convergence/study.hpp"

namespace gradsieve::study {

/// What one rank does; called once per rank of this process.
using RankBody = std::function<RunRecord(Transport&)>;

class Ranks {
 public:
  virtual ~Ranks() = default;

  [[nodiscard]] virtual int world_size() const noexcept = 0;
  /// True for the process that has rank 0 and writes the results.
  [[nodiscard]] virtual bool has_first_rank() const noexcept = 0;

  /// Runs the same on all ranks, and returns what rank 0, or the rank of this process, returned. If
  /// a rank fails the others are told, and its error is thrown.
  [[nodiscard]] virtual RunRecord run(RankBody const& body) = 0;

  /// Ends the ranks of other processes, which would wait for this one.
  virtual void abort(int exit_code) noexcept = 0;
};

[[nodiscard]] std::unique_ptr<Ranks> make_thread_ranks(StudyPlan const& plan);
/// Throws UsageError if this build has no MPI.
[[nodiscard]] std::unique_ptr<Ranks> make_mpi_ranks(StudyPlan const& plan);

/// The transport that a rank trains on: the one given, or a slow network around it.
class Link {
 public:
  Link(Transport& transport, StudyPlan const& plan);
  [[nodiscard]] Transport& transport() noexcept { return *transport_; }

 private:
  Transport* transport_;
  std::unique_ptr<Transport> limited_;
};

}  // namespace gradsieve::study
