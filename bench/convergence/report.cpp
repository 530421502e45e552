// SPDX-License-Identifier: Apache-2.0
#include "bench/convergence/report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "bench/convergence/curves.hpp"
#include "bench/convergence/report_style.hpp"

namespace gradsieve::study {
namespace {

template <typename... Args>
std::string format(char const* pattern, Args... args) {
  char text[256];
  std::snprintf(text, sizeof(text), pattern, args...);
  return text;
}

std::string counted(std::size_t count, std::string const& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string with_minus_sign(std::string text) {
  if (text.starts_with('-')) text.replace(0, 1, "−");
  return text;
}

std::string swatch(int style) {
  return "<span class=\"swatch s" + std::to_string(style) + "\"></span>";
}

std::string figure(std::string const& title, std::string const& text, std::string const& body,
                   bool is_wide = false) {
  return std::string(is_wide ? "<figure class=\"wide\">" : "<figure>") + "<figcaption><h3>" +
         escaped(title) + "</h3><p>" + text + "</p></figcaption>\n" + body + "</figure>\n";
}

std::string headline(SpecGroup const& spec) {
  SummaryRow const& row = spec.summary;
  double const points = 100.0 * row.accuracy_gap.median;
  std::string const distance =
      std::fabs(points) < 0.05
          ? "level with dense"
          : format("%.1f points %s dense", std::fabs(points), points < 0.0 ? "below" : "above");
  return escaped(row.model) + ": <code>" + escaped(spec.label) + "</code> sends " +
         format("%.0f times fewer bytes than dense fp32 (%.0f than bf16)", row.ratio_fp32,
                row.ratio_bf16) +
         " and ends " + distance + format(" in accuracy, %+.3f nats in loss", row.loss_gap.median) +
         ".";
}

// One sentence per model about the spec that saves most.
std::string lede(std::vector<ModelGroup> const& groups) {
  std::string text;
  for (ModelGroup const& group : groups) {
    SpecGroup const* best = nullptr;
    for (SpecGroup const& spec : group.specs) {
      if (spec.style < 2 || !std::isfinite(spec.summary.loss_gap.median) ||
          !std::isfinite(spec.summary.ratio_fp32))
        continue;
      if (best == nullptr || spec.summary.ratio_fp32 > best->summary.ratio_fp32) best = &spec;
    }
    if (best != nullptr) text += (text.empty() ? "" : "<br>") + headline(*best);
  }
  return text;
}

std::string fact(std::string const& name, std::string const& value) {
  return value.empty() ? "" : "<div><dt>" + name + "</dt><dd>" + escaped(value) + "</dd></div>\n";
}

std::string header(StudyRecord const& record, std::vector<ModelGroup> const& groups) {
  std::set<std::uint64_t> seeds;
  std::set<std::string> specs;
  for (RunRecord const& run : record.runs) {
    seeds.insert(run.seed);
    specs.insert(run.spec);
  }
  int const world_size = record.runs.empty() ? 0 : record.runs.front().world_size;
  std::string html = "<header>\n<p class=\"kicker\">gradsieve · convergence study</p>\n<h1>" +
                     escaped(record.title) + ": " + counted(groups.size(), "model") + ", " +
                     counted(specs.size(), "spec") + ", " +
                     counted(static_cast<std::size_t>(world_size), "rank") + ", " +
                     counted(seeds.size(), "seed") + "</h1>\n";
  html += "<p class=\"lede\">" + lede(groups) + "</p>\n<dl class=\"facts\">\n";
  html += fact("Started", record.started_at) + fact("Commit", record.git_commit) +
          fact("Host", record.host) + fact("Built with", record.versions) +
          fact("Command", record.command_line);
  return html + "</dl>\n</header>\n";
}

std::string table_open(std::vector<char const*> const& columns) {
  std::string html = "<div class=\"scroll\"><table>\n<thead><tr>";
  for (char const* column : columns) html += "<th scope=\"col\">" + std::string(column) + "</th>";
  return html + "</tr></thead>\n<tbody>\n";
}

std::string model_line(ModelGroup const& group, std::size_t num_columns) {
  SummaryRow const& row = group.specs.front().summary;
  return "<tr class=\"model\"><th scope=\"rowgroup\" colspan=\"" + std::to_string(num_columns) +
         "\">" + escaped(group.model) + " <small>" + counted(row.num_steps, "step") + ", " +
         counted(static_cast<std::size_t>(row.world_size), "rank") + "</small></th></tr>\n";
}

std::string spec_cell(SpecGroup const& spec) {
  return "<td class=\"spec\">" + swatch(spec.style) + escaped(spec.summary.spec) + "</td>";
}

std::string cell(std::string const& html) { return "<td>" + html + "</td>"; }

// The median with the range under it; a dash where no run got so far.
std::string spread_cell(Spread const& spread, bool has_range, char const* pattern,
                        char const* unit = "") {
  if (!std::isfinite(spread.median)) return cell("–");
  auto const text = [pattern](double value) { return with_minus_sign(format(pattern, value)); };
  std::string const range = "<small>" + text(spread.low) + " … " + text(spread.high) + "</small>";
  return cell(text(spread.median) + unit + (has_range ? range : ""));
}

std::string ratio_cell(double ratio) {
  return cell(std::isfinite(ratio) ? "×" + format("%.1f", ratio) : "–");
}

Spread in_percent(Spread const& share) {
  return {100.0 * share.median, 100.0 * share.low, 100.0 * share.high};
}

std::string quality_table(std::vector<ModelGroup> const& groups) {
  std::vector<char const*> const columns = {"Spec",         "Seeds",       "Loss, nats",
                                            "Gap to dense", "Accuracy",    "Sent per step",
                                            "Against fp32", "Against bf16"};
  std::string html = table_open(columns);
  for (ModelGroup const& group : groups) {
    html += model_line(group, columns.size());
    for (SpecGroup const& spec : group.specs) {
      SummaryRow const& row = spec.summary;
      bool const has_range = row.num_seeds > 1;
      html += "<tr>" + spec_cell(spec) + cell(seeds_text(row)) +
              spread_cell(row.validation_loss, has_range, "%.4f") +
              (row.spec == "none" ? cell("–") : spread_cell(row.loss_gap, has_range, "%+.4f")) +
              spread_cell(in_percent(row.accuracy), has_range, "%.2f", " %") +
              cell(format_value(row.step_wire_bytes, Unit::bytes)) + ratio_cell(row.ratio_fp32) +
              ratio_cell(row.ratio_bf16) + "</tr>\n";
    }
  }
  return html + "</tbody></table></div>\n";
}

std::string time_table(std::vector<ModelGroup> const& groups) {
  std::vector<char const*> const columns = {"Spec",         "Compute",      "Encode",
                                            "Exchange",     "Decode",       "At 1 Gbit/s",
                                            "At 10 Gbit/s", "At 100 Gbit/s"};
  std::string html = table_open(columns);
  for (ModelGroup const& group : groups) {
    html += model_line(group, columns.size());
    for (SpecGroup const& spec : group.specs) {
      SummaryRow const& row = spec.summary;
      html += "<tr>" + spec_cell(spec);
      for (double const ms : {row.compute_ms, row.encode_ms, row.exchange_ms, row.decode_ms})
        html += cell(format("%.2f", ms));
      for (double const ms : row.modelled_ms) html += cell(format("%.2f", ms));
      html += "</tr>\n";
    }
  }
  return html + "</tbody></table></div>\n";
}

double lowest_positive(std::vector<PlotSeries> const& all, bool highest) {
  double result = highest ? 0.0 : HUGE_VAL;
  for (PlotSeries const& series : all) {
    for (PlotPoint const& p : series.points)
      result = highest ? std::max(result, p.high) : std::min(result, p.low);
  }
  return result;
}

// A loss that falls by a factor of four or more shows its end only on a logarithmic scale.
Plot loss_plot(ModelGroup const& group, std::string const& title, AxisSpec const& x,
               RowValue const& x_of) {
  Plot plot;
  plot.title = group.model + ", " + title;
  plot.description = "Training loss of each spec, median over the seeds.";
  plot.x = x;
  plot.series = curves(group, x_of, [](MetricsRow const& row) { return row.loss; });
  double const low = lowest_positive(plot.series, false);
  plot.y = {
      "training loss, nats",
      low > 0.0 && lowest_positive(plot.series, true) > 4.0 * low ? Scale::log : Scale::linear,
      Unit::plain};
  return plot;
}

std::string loss_against_steps(ModelGroup const& group) {
  return figure(
      "Loss against steps", "Training loss, mean of all ranks since the point before.",
      render(loss_plot(group, "loss against steps", {"step", Scale::linear, Unit::plain, true},
                       [](MetricsRow const& row) { return static_cast<double>(row.step); })));
}

std::string accuracy_against_bytes(ModelGroup const& group) {
  Plot plot;
  plot.title = group.model + ", accuracy against bytes sent";
  plot.description = "Validation accuracy of each spec against the bytes that one rank has sent.";
  plot.x = {"bytes sent by one rank, logarithmic", Scale::log, Unit::bytes};
  plot.y = {"validation accuracy", Scale::linear, Unit::percent};
  plot.marks = Marks::line_with_points;
  plot.series = curves(
      group, [](MetricsRow const& row) { return row.wire_bytes; },
      [](MetricsRow const& row) { return row.accuracy; });
  return figure("Accuracy against bytes sent",
                "The last point of a line uses all validation examples, the others a part.",
                render(plot));
}

std::string loss_against_measured_time(ModelGroup const& group) {
  return figure("Loss against measured time",
                "Wall time of this machine, whose cores all ranks share; without validation.",
                render(loss_plot(group, "loss against measured time",
                                 {"measured time", Scale::linear, Unit::seconds, true},
                                 [](MetricsRow const& row) { return row.wall_s; })));
}

std::string loss_against_modelled_time(ModelGroup const& group) {
  std::string panels = "<div class=\"panels\">\n";
  for (double const gbits : kLinkGbits) {
    std::string const link = format("%.0f Gbit/s", gbits);
    Plot plot = loss_plot(group, "loss against modelled time at " + link,
                          {"modelled time at " + link, Scale::linear, Unit::seconds, true},
                          [gbits](MetricsRow const& row) {
                            return row.step == 0 ? 0.0 : modelled_step_s(row, 1, gbits);
                          });
    plot.width = 380.0;
    plot.height = 300.0;
    plot.labels_series = false;
    panels += render(plot);
  }
  return figure(
      "Loss against modelled time",
      "Compute + encode + decode + bytes sent / rate, nothing overlapped, for three links.",
      panels + "</div>\n", true);
}

BarPlot step_time_bars(ModelGroup const& group) {
  BarPlot plot;
  plot.title = group.model + ", modelled time of a step";
  plot.description = "Compute, encode and decode, and the wire, for three links.";
  plot.part_names = {"compute", "encode and decode", "wire"};
  for (std::size_t i = 0; i < kLinkGbits.size(); ++i) {
    BarGroup bars{format("%.0f Gbit/s", kLinkGbits[i]), {}};
    for (SpecGroup const& spec : group.specs) {
      double const codec_ms = spec.summary.encode_ms + spec.summary.decode_ms;
      double const wire_ms = spec.summary.modelled_ms[i] - spec.summary.compute_ms - codec_ms;
      bars.bars.push_back(
          {spec.label, spec.style, {spec.summary.compute_ms, codec_ms, std::max(0.0, wire_ms)}});
    }
    plot.groups.push_back(std::move(bars));
  }
  return plot;
}

std::string step_times(BarPlot const& bars) {
  return figure(
      "Modelled time of a step",
      "<span class=\"key part0\"></span>compute <span class=\"key part1\"></span>encode and decode "
      "<span class=\"key part2\"></span>wire",
      render(bars));
}

// As high as the figure beside it.
std::string pareto(ModelGroup const& group, double height) {
  Plot plot;
  plot.height = std::max(plot.height, height);
  plot.title = group.model + ", accuracy against compression ratio";
  plot.description = "One point per spec, with the range over the seeds.";
  plot.x = {"dense fp32 bytes / bytes sent, logarithmic", Scale::log, Unit::times};
  plot.y = {"final accuracy", Scale::linear, Unit::percent};
  plot.marks = Marks::points;
  for (SpecGroup const& spec : group.specs) {
    Spread const& accuracy = spec.summary.accuracy;
    if (!std::isfinite(spec.summary.ratio_fp32)) continue;
    plot.series.push_back(
        {spec.label,
         spec.summary.spec,
         spec.style,
         {{spec.summary.ratio_fp32, accuracy.median, accuracy.low, accuracy.high}}});
  }
  return figure("Accuracy against compression ratio",
                "Median and range over the seeds; up and to the right is better.", render(plot));
}

std::string residual_norms(ModelGroup const& group) {
  Plot plot;
  plot.title = group.model + ", norm of the residual";
  plot.description = "What error feedback keeps for later, mean of the ranks.";
  plot.x = {"step", Scale::linear, Unit::plain, true};
  plot.y = {"2-norm of the residual", Scale::linear, Unit::plain, true};
  plot.series = curves(
      group, [](MetricsRow const& row) { return static_cast<double>(row.step); },
      [](MetricsRow const& row) { return row.residual_norm; });
  std::erase_if(plot.series, [](PlotSeries const& series) {
    return std::all_of(series.points.begin(), series.points.end(),
                       [](PlotPoint const& p) { return p.high == 0.0; });
  });
  if (plot.series.empty()) return "";
  return figure("Residual", "What error feedback still keeps on a rank, mean of the ranks.",
                render(plot));
}

std::string model_section(ModelGroup const& group) {
  std::string html = "<section>\n<h2>" + escaped(group.model) + "</h2>\n<ul class=\"legend\">\n";
  for (SpecGroup const& spec : group.specs) {
    html += "<li>" + swatch(spec.style) + "<span class=\"spec\">" + escaped(spec.summary.spec) +
            "</span></li>\n";
  }
  BarPlot const bars = step_time_bars(group);
  html += "</ul>\n<div class=\"figures\">\n" + loss_against_steps(group) +
          accuracy_against_bytes(group) + pareto(group, height_of(bars)) + step_times(bars) +
          loss_against_modelled_time(group) + loss_against_measured_time(group) +
          residual_norms(group);
  return html + "</div>\n</section>\n";
}

}  // namespace

std::string report_html(StudyRecord const& record) {
  auto const groups = group_by_model(record);
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<title>gradsieve: " +
      escaped(record.title) + "</title>\n<style>" + kReportStyle +
      "</style>\n</head>\n<body>\n<main>\n" + header(record, groups);
  html += "<section>\n<h2>Quality and bytes</h2>\n" + quality_table(groups) +
          "<p class=\"note\">Loss and accuracy on held-out data: median, and range over the seeds. "
          "The gap is taken between runs of "
          "one seed. Bytes are what one rank hands to the transport, headers, votes and dense "
          "tensors included; the ratios compare "
          "them with dense fp32 and dense bf16 gradients counted the same way on the same "
          "transport.</p>\n</section>\n";
  html += "<section>\n<h2>Time of a step, milliseconds</h2>\n" + time_table(groups) +
          "<p class=\"note\">Measured: compute is the CPU time of one rank (forward, backward, "
          "update); encode, exchange and decode "
          "are wall times of ranks that share this machine's cores, hence upper bounds. Modelled: "
          "compute + encode + decode + "
          "bytes sent / rate; nothing overlaps and latency is not counted.</p>\n</section>\n";
  for (ModelGroup const& group : groups) html += model_section(group);
  for (std::string const& note : record.notes)
    html += "<p class=\"note\">" + escaped(note) + "</p>\n";
  return html + "</main>\n</body>\n</html>\n";
}

}  // namespace gradsieve::study
