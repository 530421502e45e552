// SPDX-License-Identifier: Apache-2.0
#include "bench/convergence/svg_plot.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace gradsieve::study {
namespace {

constexpr double kLeft = 58.0;
constexpr double kTop = 34.0;
constexpr double kBottom = 46.0;
constexpr double kLabelRoom = 132.0;
constexpr double kSideRoom = 40.0;
constexpr double kLabelDistance = 15.0;
constexpr double kBarStep = 20.0;
constexpr double kGroupGap = 26.0;
constexpr std::size_t kMaxLabel = 20;
constexpr double kCharWidth = 7.4;  // of the widest usual system font at the size of labels

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

std::string text_at(double x, double y, char const* css_class, std::string const& text) {
  return "<text class=\"" + std::string(css_class) + "\" x=\"" + number(x) + "\" y=\"" + number(y) +
         "\">" + escaped(text) + "</text>\n";
}

std::string line_between(double x1, double y1, double x2, double y2, char const* css_class) {
  return "<line class=\"" + std::string(css_class) + "\" x1=\"" + number(x1) + "\" y1=\"" +
         number(y1) + "\" x2=\"" + number(x2) + "\" y2=\"" + number(y2) + "\"/>\n";
}

std::string style_class(int style) { return "s" + std::to_string(style); }

std::string shortened(std::string const& label) {
  return label.size() <= kMaxLabel ? label : label.substr(0, kMaxLabel - 1) + "…";
}

// UTF-8 continuation bytes take no room of their own.
std::size_t columns_of(std::string const& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string svg_open(double width, double height, std::string const& description) {
  return "<svg viewBox=\"0 0 " + number(width) + " " + number(height) +
         "\" role=\"img\" aria-label=\"" + escaped(description) + "\">\n";
}

// Pushes positions apart until neighbours have the distance, as little as possible and within
// borders.
void spread_out(std::vector<double*> positions, double distance, double low, double high) {
  std::sort(positions.begin(), positions.end(), [](double* a, double* b) { return *a < *b; });
  for (std::size_t i = 1; i < positions.size(); ++i)
    *positions[i] = std::max(*positions[i], *positions[i - 1] + distance);
  double limit = high;
  for (std::size_t i = positions.size(); i-- > 0; limit = *positions[i] - distance) {
    *positions[i] = std::max(low, std::min(*positions[i], limit));
  }
}

// Lines of equal length have their names in a column behind the plot.
bool lines_end_together(Plot const& plot) {
  double low = std::numeric_limits<double>::infinity();
  double high = 0.0;
  for (PlotSeries const& series : plot.series) {
    if (series.points.empty()) continue;
    low = std::min(low, series.points.back().x);
    high = std::max(high, series.points.back().x);
  }
  return plot.marks != Marks::points && low >= 0.99 * high;
}

class PlotPainter {
 public:
  explicit PlotPainter(Plot const& plot)
      : plot_(plot),
        ends_together_(lines_end_together(plot)),
        right_(plot.width - (!plot.labels_series ? 22.0
                             : ends_together_    ? kLabelRoom
                                                 : kSideRoom)),
        bottom_(plot.height - kBottom),
        x_(make_axis(plot.x, false)),
        y_(make_axis(plot.y, true)) {}

  std::string paint() {
    svg_ = svg_open(plot_.width, plot_.height, plot_.title + ". " + plot_.description);
    paint_axes();
    for (PlotSeries const& series : plot_.series) paint_band(series);
    for (PlotSeries const& series : plot_.series) paint_series(series);
    if (plot_.labels_series) paint_labels();
    return svg_ + "</svg>\n";
  }

 private:
  Axis make_axis(AxisSpec const& spec, bool is_y) const {
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    auto const include = [&](double value) {
      if (!std::isfinite(value) || (spec.scale == Scale::log && value <= 0.0)) return;
      low = std::min(low, value);
      high = std::max(high, value);
    };
    for (PlotSeries const& series : plot_.series) {
      for (PlotPoint const& point : series.points) {
        include(is_y ? point.low : point.x);
        include(is_y ? point.high : point.x);
        if (is_y) include(point.y);
      }
    }
    if (spec.from_zero) low = std::min(low, 0.0);
    // A curve ends at the border; a value is read against a tick above it.
    Border const border = is_y || plot_.marks == Marks::points ? Border::rounded : Border::tight;
    return Axis(low, high, spec.scale, spec.unit, !is_y && plot_.width < 400.0 ? 4 : 6, border);
  }

  double px(double x) const { return kLeft + (right_ - kLeft) * x_.position(x); }
  double py(double y) const { return bottom_ - (bottom_ - kTop) * y_.position(y); }

  void paint_axes() {
    svg_ += text_at(kLeft - 46.0, 16.0, "axis-label", plot_.y.label);
    for (Tick const& tick : y_.ticks()) {
      double const y = py(tick.value);
      svg_ += line_between(kLeft, y, right_, y, tick.label.empty() ? "grid minor" : "grid");
      if (!tick.label.empty()) svg_ += text_at(kLeft - 8.0, y + 4.0, "tick end", tick.label);
    }
    svg_ += line_between(kLeft, bottom_, right_, bottom_, "axis");
    for (Tick const& tick : x_.ticks()) {
      double const x = px(tick.value);
      svg_ += line_between(x, bottom_, x, bottom_ + (tick.label.empty() ? 3.0 : 5.0), "axis");
      if (!tick.label.empty()) svg_ += text_at(x, bottom_ + 18.0, "tick middle", tick.label);
    }
    svg_ += text_at((kLeft + right_) / 2.0, bottom_ + 37.0, "axis-label middle", plot_.x.label);
  }

  bool can_draw(PlotPoint const& p) const {
    return std::isfinite(p.x) && std::isfinite(p.y) &&
           (plot_.x.scale == Scale::linear || p.x > 0.0) &&
           (plot_.y.scale == Scale::linear || p.low > 0.0);
  }

  void paint_band(PlotSeries const& series) {
    if (plot_.marks == Marks::points) return;
    std::string upper;
    std::string lower;
    bool has_width = false;
    for (PlotPoint const& p : series.points) {
      if (!can_draw(p)) continue;
      upper += number(px(p.x)) + "," + number(py(p.high)) + " ";
      lower = number(px(p.x)) + "," + number(py(p.low)) + " " + lower;
      has_width = has_width || p.high > p.low;
    }
    if (has_width)
      svg_ += "<polygon class=\"band " + style_class(series.style) + "\" points=\"" + upper +
              lower + "\"/>\n";
  }

  void paint_series(PlotSeries const& series) {
    std::string const css = style_class(series.style);
    svg_ += "<g class=\"series " + css + "\"><title>" + escaped(series.full_name) + "</title>\n";
    if (plot_.marks != Marks::points) {
      std::string path;
      for (PlotPoint const& p : series.points) {
        if (can_draw(p))
          path += (path.empty() ? "M" : "L") + number(px(p.x)) + "," + number(py(p.y));
      }
      svg_ += "<path class=\"line " + css + "\" d=\"" + path + "\"/>\n";
    }
    if (plot_.marks != Marks::line) {
      for (PlotPoint const& p : series.points) {
        if (can_draw(p)) paint_point(series, p);
      }
    }
    svg_ += "</g>\n";
  }

  void paint_point(PlotSeries const& series, PlotPoint const& p) {
    double const x = px(p.x);
    std::string const css = style_class(series.style);
    bool const is_large = plot_.marks == Marks::points;
    if (is_large && p.high > p.low) {
      std::string const whisker = "whisker " + css;
      svg_ += line_between(x, py(p.low), x, py(p.high), whisker.c_str());
      for (double const end : {p.low, p.high})
        svg_ += line_between(x - 4.0, py(end), x + 4.0, py(end), whisker.c_str());
    }
    svg_ += "<circle class=\"dot " + css + "\" cx=\"" + number(x) + "\" cy=\"" + number(py(p.y)) +
            "\" r=\"" + (is_large ? "5" : "2.6") + "\"><title>" +
            escaped(series.full_name + ": " + format_value(p.y, plot_.y.unit) + " at " +
                    format_value(p.x, plot_.x.unit)) +
            "</title></circle>\n";
  }

  struct Label {
    PlotSeries const* series;
    double x;  // the point it names
    double y;
  };

  // The last point of each line, or each point where there are no lines.
  std::vector<Label> labelled_points() const {
    std::vector<Label> labels;
    for (PlotSeries const& series : plot_.series) {
      auto const last = std::find_if(series.points.rbegin(), series.points.rend(),
                                     [this](auto const& p) { return can_draw(p); });
      if (last != series.points.rend()) labels.push_back({&series, px(last->x), py(last->y)});
    }
    return labels;
  }

  void paint_labels() {
    auto const labels = labelled_points();
    if (ends_together_) {
      paint_label_column(labels);
    } else {
      paint_labels_beside_points(labels);
    }
  }

  // Lines that end at the border have their names in a column behind it.
  void paint_label_column(std::vector<Label> const& labels) {
    std::vector<double> heights;
    for (Label const& label : labels) heights.push_back(label.y);
    std::vector<double*> positions;
    for (double& height : heights) positions.push_back(&height);
    spread_out(positions, kLabelDistance, kTop, bottom_);
    for (std::size_t i = 0; i < labels.size(); ++i) {
      std::string const css = style_class(labels[i].series->style);
      // A thin leader ties a label to its line where it had to give way.
      if (std::fabs(heights[i] - labels[i].y) > 6.0) {
        svg_ += line_between(labels[i].x + 3.0, labels[i].y, right_ + 12.0, heights[i],
                             ("leader " + css).c_str());
      }
      svg_ += text_at(right_ + 15.0, heights[i] + 4.0, ("label " + css).c_str(),
                      shortened(labels[i].series->label));
    }
  }

  struct Box {
    double left, top, right, bottom;
    bool contains(double x, double y) const {
      return x > left && x < right && y > top && y < bottom;
    }
    bool overlaps(Box const& o) const {
      return left < o.right && o.left < right && top < o.bottom && o.top < bottom;
    }
  };

  // Elsewhere a name goes to the side of its point where it hides least.
  void paint_labels_beside_points(std::vector<Label> const& labels) {
    std::vector<Box> taken;
    for (Label const& label : labels) {
      double const r = 8.0;
      taken.push_back({label.x - r, label.y - r, label.x + r, label.y + r});
    }
    for (Label const& label : labels) {
      std::string const text = shortened(label.series->label);
      Box const box = best_box(label, kCharWidth * static_cast<double>(columns_of(text)), taken);
      taken.push_back(box);
      svg_ += text_at((box.left + box.right) / 2.0, box.bottom - 3.5,
                      ("label halo middle " + style_class(label.series->style)).c_str(), text);
    }
  }

  Box best_box(Label const& label, double width, std::vector<Box> const& taken) const {
    constexpr double kGap = 9.0;
    double const half = kLabelDistance / 2.0;
    Box best{};
    double best_cost = std::numeric_limits<double>::infinity();
    // To the right, the left, above, below; then the same, further up or down.
    for (double const shift : {0.0, -1.0, 1.0, -2.0, 2.0, -3.0, 3.0, -4.0, 4.0, 5.0, 6.0}) {
      for (int side = 0; side < 4; ++side) {
        double const dx = side == 0 ? kGap : side == 1 ? -kGap - width : -width / 2.0;
        double const dy = (side == 2 ? -kGap - half : side == 3 ? kGap + half : 0.0) + shift * half;
        Box const box{label.x + dx, label.y + dy - half, label.x + dx + width, label.y + dy + half};
        double const cost = cost_of(box, taken) + std::fabs(shift) + (side == 0 ? 0.0 : 0.5);
        if (cost >= best_cost) continue;
        best_cost = cost;
        best = box;
      }
    }
    return best;
  }

  double cost_of(Box const& box, std::vector<Box> const& taken) const {
    double cost = 0.0;
    if (box.left < kLeft || box.right > plot_.width || box.top < kTop - 12.0 ||
        box.bottom > bottom_ - 1.0)
      cost += 1000.0;
    for (Box const& other : taken) cost += box.overlaps(other) ? 100.0 : 0.0;
    for (PlotSeries const& series : plot_.series) {
      for (PlotPoint const& p : series.points) {
        if (can_draw(p) && box.contains(px(p.x), py(p.y))) cost += 3.0;
      }
    }
    return cost;
  }

  Plot const& plot_;
  bool ends_together_;
  double right_;
  double bottom_;
  Axis x_;
  Axis y_;
  std::string svg_;
};

}  // namespace

std::string escaped(std::string const& text) {
  std::string result;
  for (char const c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string render(Plot const& plot) { return PlotPainter(plot).paint(); }

double height_of(BarPlot const& plot) {
  double height = 8.0;
  for (BarGroup const& group : plot.groups)
    height += kGroupGap + kBarStep * static_cast<double>(group.bars.size());
  return height;
}

std::string render(BarPlot const& plot) {
  constexpr double kNameRoom = 150.0;
  constexpr double kBarHeight = 15.0;
  double longest = 0.0;
  for (BarGroup const& group : plot.groups) {
    for (auto const& bar : group.bars) {
      double sum = 0.0;
      for (double const part : bar.parts) sum += part;
      longest = std::max(longest, sum);
    }
  }
  // Room for the number behind the longest bar.
  double const scale = (plot.width - kNameRoom - 62.0) / (longest > 0.0 ? longest : 1.0);

  std::string svg = svg_open(plot.width, height_of(plot), plot.title + ". " + plot.description);
  double y = 0.0;
  for (BarGroup const& group : plot.groups) {
    y += kGroupGap;
    svg += text_at(0.0, y - 6.0, "axis-label", group.label);
    for (auto const& bar : group.bars) {
      svg += text_at(kNameRoom - 8.0, y + 12.0, ("label end " + style_class(bar.style)).c_str(),
                     shortened(bar.label));
      double x = kNameRoom;
      double sum = 0.0;
      for (std::size_t i = 0; i < bar.parts.size(); ++i) {
        double const width = scale * bar.parts[i];
        svg += "<rect class=\"part" + std::to_string(i) + " " + style_class(bar.style) + "\" x=\"" +
               number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(width) + "\" height=\"" +
               number(kBarHeight) + "\"><title>" +
               escaped(plot.part_names[i] + ": " + format_value(bar.parts[i], plot.unit)) +
               "</title></rect>\n";
        x += width;
        sum += bar.parts[i];
      }
      svg += text_at(x + 6.0, y + 12.0, "tick", format_value(sum, plot.unit));
      y += kBarStep;
    }
  }
  return svg + "</svg>\n";
}

}  // namespace gradsieve::study
