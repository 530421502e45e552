// SPDX-License-Identifier: Apache-2.0
// Plots as inline SVG. Colours come from the style sheet of the page: class "s0" is the dense
// baseline, "s1" its half-precision form, "s2" and up are the specs under study.
#pragma once

#include <string>
#include <vector>

#include "bench/convergence/axis.hpp"

namespace gradsieve::study {

struct PlotPoint {
  double x = 0.0;
  double y = 0.0;  ///< median
  double low = 0.0;
  double high = 0.0;
};

struct PlotSeries {
  std::string label;      ///< short, written at the line's end
  std::string full_name;  ///< shown by the browser when the pointer rests on it
  int style = 0;
  std::vector<PlotPoint> points;
};

struct AxisSpec {
  std::string label;
  Scale scale = Scale::linear;
  Unit unit = Unit::plain;
  bool from_zero = false;
};

enum class Marks { line, line_with_points, points };

struct Plot {
  std::string title;
  std::string description;  ///< read by screen readers
  AxisSpec x;
  AxisSpec y;
  Marks marks = Marks::line;
  bool labels_series = true;
  double width = 560.0;
  double height = 340.0;
  std::vector<PlotSeries> series;
};

[[nodiscard]] std::string render(Plot const& plot);

/// Horizontal bars of stacked parts, in groups.
struct BarGroup {
  std::string label;
  struct Bar {
    std::string label;
    int style = 0;
    std::vector<double> parts;
  };
  std::vector<Bar> bars;
};
struct BarPlot {
  std::string title;
  std::string description;
  Unit unit = Unit::milliseconds;
  std::vector<std::string> part_names;
  std::vector<BarGroup> groups;
  double width = 560.0;
};

[[nodiscard]] std::string render(BarPlot const& plot);
[[nodiscard]] double height_of(BarPlot const& plot);

/// Text made safe for HTML and SVG.
[[nodiscard]] std::string escaped(std::string const& text);

}  // namespace gradsieve::study
