// SPDX-License-Identifier: Apache-2.0
// The curves of a report: rows of several seeds folded into medians and ranges.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/convergence/summary.hpp"
#include "bench/convergence/svg_plot.hpp"

namespace gradsieve::study {

/// One spec of one model: its runs, and how it is drawn.
struct SpecGroup {
  SummaryRow summary;
  std::string label;  ///< the chain without its clauses, as short as it stays unique
  int style = 0;
  std::vector<RunRecord const*> runs;  ///< one per seed
};

struct ModelGroup {
  std::string model;
  std::vector<SpecGroup> specs;
};

/// The returned groups point into the record.
[[nodiscard]] std::vector<ModelGroup> group_by_model(StudyRecord const& record);

using RowValue = std::function<double(MetricsRow const&)>;

/// One series per spec: medians over the seeds of x and y, with the range of y. Rows whose y was
/// not measured are left out.
[[nodiscard]] std::vector<PlotSeries> curves(ModelGroup const& group, RowValue const& x,
                                             RowValue const& y);

}  // namespace gradsieve::study
