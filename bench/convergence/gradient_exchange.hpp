// SPDX-License-Identifier: Apache-2.0
// What the study asks of the library, in one place: buckets, the hook, and exact byte counts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gradsieve/hook.hpp"
#include "gradsieve/transport.hpp"

#include "bench/convergence/learner.hpp"

namespace gradsieve::study {

/// Sums since the start, on this rank.
struct ExchangeTotals {
  std::uint64_t wire_bytes =
      0;  ///< handed to the transport between begin and finish, votes included
  double encode_s = 0.0;
  double exchange_s = 0.0;
  double decode_s = 0.0;
  double residual_norm = 0.0;  ///< over all tensors, now
};

/// The gradients of one model on one rank, cut into buckets and exchanged through a Hook.
///
/// Tensors enter the buckets in reverse order, as backward finishes them. Errors of the exchange
/// are thrown as Error with the rank, tensor and field that the hook names.
class GradientExchange {
 public:
  GradientExchange(Transport& transport, std::span<Parameter const> parameters,
                   std::string const& spec, std::uint64_t seed, StudyPlan const& plan);

  /// Where the gradient of each parameter lies, in the order of the parameters.
  [[nodiscard]] std::vector<std::span<float>> const& gradients() const noexcept {
    return gradients_;
  }

  /// Local gradients in, their mean over all ranks out. False, on all ranks alike, if some gradient
  /// is not finite: the step is then rolled back, and the gradients must not be used.
  [[nodiscard]] bool reduce(std::uint64_t step);

  [[nodiscard]] ExchangeTotals totals() const;

 private:
  void lay_out(std::span<Parameter const> parameters, std::uint64_t bucket_bytes);
  void check(Status status) const;

  Transport& transport_;
  Hook hook_;
  std::vector<std::vector<float>> buckets_;
  std::vector<BucketDesc> bucket_descs_;
  std::vector<std::span<float>> gradients_;
  std::vector<Event> events_;
  std::uint64_t wire_bytes_ = 0;
};

/// Bytes that one rank sends in one step with this spec, counted on the transport itself. Only for
/// specs whose payloads do not depend on the gradient.
[[nodiscard]] std::uint64_t measure_step_bytes(Transport& transport,
                                               std::span<Parameter const> parameters,
                                               std::string const& spec, StudyPlan const& plan);

/// Collects numbers of all ranks on rank 0: [world_size * values.size()] there, nothing elsewhere.
/// Waits for every rank; throws Error after the plan's timeout.
[[nodiscard]] std::vector<double> gather_to_first_rank(Transport& transport,
                                                       std::span<double const> values,
                                                       StudyPlan const& plan);

}  // namespace gradsieve::study
