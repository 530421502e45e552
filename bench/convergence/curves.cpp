// SPDX-License-Identifier: Apache-2.0
#include "bench/convergence/curves.hpp"

#include <algorithm>
#include <cmath>

namespace gradsieve::study {
namespace {

constexpr int kFirstStudyStyle = 2;
constexpr int kNumStudyStyles = 6;

// "topk(density=0.01) | int8 ; feedback=residual" becomes "topk(0.01) | int8".
std::string short_label(std::string const& spec) {
  std::string label = spec.substr(0, spec.find(';'));
  for (std::string const key : {"density=", "block="}) {
    for (std::size_t at = label.find(key); at != std::string::npos; at = label.find(key))
      label.erase(at, key.size());
  }
  while (!label.empty() && label.back() == ' ') label.pop_back();
  return label;
}

void label_and_style(ModelGroup& group) {
  int next_style = kFirstStudyStyle;
  for (SpecGroup& spec : group.specs) {
    bool const is_half = spec.summary.spec == "bf16" || spec.summary.spec == "fp16";
    if (spec.summary.spec == "none") {
      spec.style = 0;
    } else if (is_half) {
      spec.style = 1;
    } else {
      spec.style = next_style;
      next_style = kFirstStudyStyle + (next_style - kFirstStudyStyle + 1) % kNumStudyStyles;
    }
    std::string const label = short_label(spec.summary.spec);
    auto const is_same = [&label](SpecGroup const& other) {
      return short_label(other.summary.spec) == label;
    };
    bool const is_unique = std::count_if(group.specs.begin(), group.specs.end(), is_same) == 1;
    spec.label = is_unique ? label : spec.summary.spec;
  }
}

}  // namespace

std::vector<ModelGroup> group_by_model(StudyRecord const& record) {
  std::vector<ModelGroup> groups;
  for (SummaryRow const& row : summarise(record.runs)) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&row](auto const& g) { return g.model == row.model; });
    if (group == groups.end()) group = groups.insert(groups.end(), ModelGroup{row.model, {}});
    SpecGroup spec;
    spec.summary = row;
    for (RunRecord const& run : record.runs) {
      if (run.model == row.model && run.spec == row.spec) spec.runs.push_back(&run);
    }
    group->specs.push_back(std::move(spec));
  }
  for (ModelGroup& group : groups) label_and_style(group);
  return groups;
}

std::vector<PlotSeries> curves(ModelGroup const& group, RowValue const& x, RowValue const& y) {
  std::vector<PlotSeries> all;
  for (SpecGroup const& spec : group.specs) {
    PlotSeries series{spec.label, spec.summary.spec, spec.style, {}};
    // Runs of one spec have their rows at the same steps.
    std::size_t num_rows = spec.runs.front()->rows.size();
    for (RunRecord const* run : spec.runs) num_rows = std::min(num_rows, run->rows.size());
    for (std::size_t i = 0; i < num_rows; ++i) {
      std::vector<double> xs;
      std::vector<double> ys;
      for (RunRecord const* run : spec.runs) {
        xs.push_back(x(run->rows[i]));
        ys.push_back(y(run->rows[i]));
      }
      if (std::any_of(ys.begin(), ys.end(), [](double value) { return !std::isfinite(value); }))
        continue;
      Spread const spread = spread_of(ys);
      series.points.push_back({spread_of(xs).median, spread.median, spread.low, spread.high});
    }
    all.push_back(std::move(series));
  }
  return all;
}

}  // namespace gradsieve::study
