// SPDX-License-Identifier: Apache-2.0
// From runs to one line per model and spec: medians, spreads, ratios, modelled step times.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "bench/convergence/study.hpp"

namespace gradsieve::study {

/// Median and range over the seeds.
struct Spread {
  double median = 0.0;
  double low = 0.0;
  double high = 0.0;
};

/// Over the finite values; NaN in every member if there are none.
[[nodiscard]] Spread spread_of(std::vector<double> values);

inline constexpr std::array<double, 3> kLinkGbits = {1.0, 10.0, 100.0};

/// Seconds that a step takes on a link of this rate:
///
///   compute + encode + decode + 8 * wire_bytes / bits_per_second
///
/// Nothing overlaps, latency is not counted, and the link carries what one rank sends.
[[nodiscard]] double modelled_step_s(MetricsRow const& totals, std::uint64_t num_steps,
                                     double gbits);

struct SummaryRow {
  std::string model;
  std::string spec;
  int world_size = 1;
  std::uint64_t num_steps = 0;
  std::uint64_t num_seeds = 0;
  std::uint64_t num_diverged = 0;  ///< of these; they do not enter the medians of loss and accuracy
  Spread validation_loss;
  Spread accuracy;
  Spread loss_gap;      ///< to `none` with the same seed, in nats; NaN without such runs
  Spread accuracy_gap;  ///< to `none` with the same seed
  double step_wire_bytes = 0.0;
  double ratio_fp32 = 0.0;  ///< bytes of dense fp32 by bytes sent
  double ratio_bf16 = 0.0;
  double compute_ms = 0.0;  ///< per step, as the three below
  double encode_ms = 0.0;
  double exchange_ms = 0.0;
  double decode_ms = 0.0;
  std::array<double, kLinkGbits.size()> modelled_ms = {};
};

/// "3", or "3, 1 diverged".
[[nodiscard]] std::string seeds_text(SummaryRow const& row);

/// In the order in which model and spec first appear.
[[nodiscard]] std::vector<SummaryRow> summarise(std::span<RunRecord const> runs);

/// The table for a terminal, with the formula of its modelled times under it.
void print_table(std::ostream& out, std::span<SummaryRow const> rows);

}  // namespace gradsieve::study
