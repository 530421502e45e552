// SPDX-License-Identifier: Apache-2.0
#include "bench/convergence/summary.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <ostream>

namespace gradsieve::study {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

template <typename... Args>
std::string format(char const* pattern, Args... args) {
  char text[256];
  std::snprintf(text, sizeof(text), pattern, args...);
  return text;
}

double median_of(std::span<RunRecord const* const> runs,
                 std::function<double(RunRecord const&)> const& value) {
  std::vector<double> values;
  for (RunRecord const* run : runs) values.push_back(value(*run));
  return spread_of(std::move(values)).median;
}

MetricsRow totals_of(RunRecord const& run) {
  MetricsRow totals;
  totals.wire_bytes = static_cast<double>(run.wire_bytes);
  totals.encode_s = run.encode_s;
  totals.decode_s = run.decode_s;
  totals.compute_s = run.compute_s;
  return totals;
}

SummaryRow summarise_group(std::span<RunRecord const* const> group,
                           std::span<RunRecord const> all) {
  RunRecord const& first = *group.front();
  SummaryRow row;
  row.model = first.model;
  row.spec = first.spec;
  row.world_size = first.world_size;
  row.num_steps = first.num_steps;
  row.num_seeds = group.size();
  std::vector<double> losses, accuracies, loss_gaps, accuracy_gaps;
  for (RunRecord const* run : group) {
    if (!std::isfinite(run->validation_loss)) ++row.num_diverged;
    losses.push_back(run->validation_loss);
    accuracies.push_back(run->accuracy);
    for (RunRecord const& dense : all) {
      if (dense.spec != "none" || dense.model != run->model || dense.seed != run->seed) continue;
      loss_gaps.push_back(run->validation_loss - dense.validation_loss);
      accuracy_gaps.push_back(run->accuracy - dense.accuracy);
    }
  }
  row.validation_loss = spread_of(losses);
  row.accuracy = spread_of(accuracies);
  row.loss_gap = spread_of(loss_gaps);
  row.accuracy_gap = spread_of(accuracy_gaps);
  auto const per_step = [](RunRecord const& run, double total) {
    return total / static_cast<double>(run.num_steps);
  };
  row.step_wire_bytes = median_of(
      group, [&](RunRecord const& r) { return per_step(r, static_cast<double>(r.wire_bytes)); });
  // One rank alone sends nothing: there is no ratio then.
  auto const ratio = [&group](std::uint64_t RunRecord::*dense) {
    return median_of(group, [dense](RunRecord const& r) {
      return r.wire_bytes == 0 ? kNaN
                               : static_cast<double>(r.*dense) / static_cast<double>(r.wire_bytes);
    });
  };
  row.ratio_fp32 = ratio(&RunRecord::dense_fp32_bytes);
  row.ratio_bf16 = ratio(&RunRecord::dense_bf16_bytes);
  auto const step_ms = [&](double RunRecord::*seconds) {
    return median_of(group, [&](RunRecord const& r) { return per_step(r, 1e3 * r.*seconds); });
  };
  row.compute_ms = step_ms(&RunRecord::compute_s);
  row.encode_ms = step_ms(&RunRecord::encode_s);
  row.exchange_ms = step_ms(&RunRecord::exchange_s);
  row.decode_ms = step_ms(&RunRecord::decode_s);
  for (std::size_t i = 0; i < kLinkGbits.size(); ++i) {
    row.modelled_ms[i] = median_of(group, [i](RunRecord const& r) {
      return 1e3 * modelled_step_s(totals_of(r), r.num_steps, kLinkGbits[i]);
    });
  }
  return row;
}

// "median (low…high)", or a dash where no run got so far.
std::string spread_text(Spread const& spread, char const* pattern) {
  if (!std::isfinite(spread.median)) return "-";
  return format(pattern, spread.median) + " (" + format(pattern, spread.low) + "…" +
         format(pattern, spread.high) + ")";
}

// Columns as wide as their widest cell; text to the left, numbers to the right.
void print_columns(std::ostream& out, std::vector<std::vector<std::string>> const& lines,
                   std::size_t num_text_columns) {
  std::vector<std::size_t> widths(lines.front().size());
  // UTF-8 continuation bytes take no column of their own.
  auto const columns = [](std::string const& text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
  };
  for (auto const& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], columns(line[i]));
  }
  for (auto const& line : lines) {
    std::string text;
    for (std::size_t i = 0; i < line.size(); ++i) {
      std::string const padding(widths[i] - columns(line[i]), ' ');
      text += (i == 0 ? "" : "  ") + (i < num_text_columns ? line[i] + padding : padding + line[i]);
    }
    out << text << '\n';
  }
}

}  // namespace

std::string seeds_text(SummaryRow const& row) {
  std::string const seeds = std::to_string(row.num_seeds);
  return row.num_diverged == 0 ? seeds
                               : seeds + ", " + std::to_string(row.num_diverged) + " diverged";
}

Spread spread_of(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return {kNaN, kNaN, kNaN};
  std::sort(values.begin(), values.end());
  std::size_t const middle = values.size() / 2;
  double const median =
      values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
  return {median, values.front(), values.back()};
}

double modelled_step_s(MetricsRow const& totals, std::uint64_t num_steps, double gbits) {
  double const total_s = totals.compute_s + totals.encode_s + totals.decode_s +
                         8.0 * totals.wire_bytes / (1e9 * gbits);
  return total_s / static_cast<double>(num_steps);
}

std::vector<SummaryRow> summarise(std::span<RunRecord const> runs) {
  std::vector<std::vector<RunRecord const*>> groups;
  for (RunRecord const& run : runs) {
    auto const same = [&run](auto const& group) {
      return group.front()->model == run.model && group.front()->spec == run.spec;
    };
    auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end()) group = groups.emplace(groups.end());
    group->push_back(&run);
  }
  std::vector<SummaryRow> rows;
  for (auto const& group : groups) rows.push_back(summarise_group(group, runs));
  return rows;
}

void print_table(std::ostream& out, std::span<SummaryRow const> rows) {
  std::vector<std::vector<std::string>> results = {
      {"model", "spec", "seeds", "steps", "loss (range)", "gap to dense", "accuracy % (range)",
       "kB/step", "fp32/sent", "bf16/sent"}};
  std::vector<std::vector<std::string>> times = {{"model", "spec", "compute", "encode", "exchange",
                                                  "decode", "1 Gbit/s", "10 Gbit/s", "100 Gbit/s"}};
  for (SummaryRow const& row : rows) {
    Spread const accuracy = {100 * row.accuracy.median, 100 * row.accuracy.low,
                             100 * row.accuracy.high};
    results.push_back({row.model, row.spec, seeds_text(row), std::to_string(row.num_steps),
                       spread_text(row.validation_loss, "%.4f"),
                       row.spec == "none" ? "" : spread_text(row.loss_gap, "%+.4f"),
                       spread_text(accuracy, "%.2f"), format("%.1f", row.step_wire_bytes / 1e3),
                       format("%.1f", row.ratio_fp32), format("%.1f", row.ratio_bf16)});
    std::vector<std::string> line = {row.model, row.spec};
    for (double const ms : {row.compute_ms, row.encode_ms, row.exchange_ms, row.decode_ms})
      line.push_back(format("%.2f", ms));
    for (double const ms : row.modelled_ms) line.push_back(format("%.2f", ms));
    times.push_back(line);
  }
  out << "\nValidation loss in nats and accuracy: median and range over the seeds. Bytes are what "
         "one rank sends in a\n"
         "step, counted at the transport; the ratios compare them with dense fp32 and dense bf16 "
         "gradients there.\n\n";
  print_columns(out, results, 2);
  out << "\nMilliseconds per step. Measured here: compute is CPU time of one rank, the rest is "
         "wall time of ranks that\n"
         "share this machine. Modelled for three links: compute + encode + decode + bytes sent / "
         "rate, no overlap.\n\n";
  print_columns(out, times, 2);
}

}  // namespace gradsieve::study
