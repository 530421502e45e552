// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bench/convergence/axis.hpp"
#include "bench/convergence/svg_plot.hpp"

namespace gradsieve::study {
namespace {

std::vector<std::string> labels_of(Axis const& axis) {
  std::vector<std::string> labels;
  for (Tick const& tick : axis.ticks()) {
    if (!tick.label.empty()) labels.push_back(tick.label);
  }
  return labels;
}

using Labels = std::vector<std::string>;

TEST(StudyAxis, RoundsALinearRangeToTicks) {
  Axis const axis(0.03, 0.97, Scale::linear, Unit::plain);

  EXPECT_EQ(labels_of(axis), (Labels{"0", "0.2", "0.4", "0.6", "0.8", "1"}));
  EXPECT_DOUBLE_EQ(axis.position(0.25), 0.25);
}

TEST(StudyAxis, EndsATightAxisAtItsLastValue) {
  Axis const axis(0.0, 702.0, Scale::linear, Unit::plain, 6, Border::tight);

  EXPECT_EQ(labels_of(axis), (Labels{"0", "200", "400", "600"}));
  EXPECT_DOUBLE_EQ(axis.position(702.0), 1.0);
}

TEST(StudyAxis, LabelsPowersOfTenOverManyDecades) {
  Axis const axis(3e5, 2e10, Scale::log, Unit::bytes);

  EXPECT_EQ(labels_of(axis),
            (Labels{"1\u202fMB", "10\u202fMB", "100\u202fMB", "1\u202fGB", "10\u202fGB"}));
}

TEST(StudyAxis, LabelsStepsOfOneTwoFiveWithinADecade) {
  Axis const axis(0.24, 2.3, Scale::log, Unit::plain);

  EXPECT_EQ(labels_of(axis), (Labels{"0.5", "1", "2"}));
  EXPECT_GT(axis.position(0.24), 0.0);
  EXPECT_LT(axis.position(2.3), 1.0);
}

TEST(StudyAxis, HasTicksInANarrowLogarithmicRange) {
  EXPECT_GE(Axis(2.1, 4.9, Scale::log, Unit::plain).ticks().size(), 2u);
  EXPECT_GE(Axis(95.0, 105.0, Scale::log, Unit::times).ticks().size(), 2u);
}

TEST(StudyAxis, WidensWhatHasNoWidth) {
  for (Scale const scale : {Scale::linear, Scale::log}) {
    Axis const axis(5.0, 5.0, scale, Unit::plain);

    EXPECT_GT(axis.position(5.0), 0.0);
    EXPECT_LT(axis.position(5.0), 1.0);
  }
}

TEST(StudyAxis, TakesAnEmptyRange) {
  Axis const axis(INFINITY, -INFINITY, Scale::log, Unit::plain);

  EXPECT_LT(axis.low(), axis.high());
}

TEST(StudyAxis, WritesNumbersWithTheirUnits) {
  EXPECT_EQ(format_value(0.8795, Unit::percent), "87.95\u202f%");
  EXPECT_EQ(format_value(0.0, Unit::bytes), "0\u202fB");
  EXPECT_EQ(format_value(999.6, Unit::bytes), "1\u202fkB");
  EXPECT_EQ(format_value(11'182'140.0, Unit::bytes), "11.2\u202fMB");
  EXPECT_EQ(format_value(90.0, Unit::seconds), "90\u202fs");
  EXPECT_EQ(format_value(300.0, Unit::seconds), "5\u202fmin");
  EXPECT_EQ(format_value(97.3, Unit::times), "×97.3");
  EXPECT_EQ(format_value(12'000.0, Unit::plain), "12\u202fk");
}

TEST(StudyPlot, DrawsOnlyFiniteNumbers) {
  Plot plot;
  plot.y.scale = Scale::log;
  plot.series = {{"a", "a", 2, {{1.0, 2.0, 2.0, 2.0}, {2.0, NAN, NAN, NAN}, {3.0, 0.0, 0.0, 0.0}}},
                 {"b", "b", 3, {}}};
  for (Marks const marks : {Marks::line, Marks::line_with_points, Marks::points}) {
    plot.marks = marks;
    std::string const svg = render(plot);

    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
  }
}

TEST(StudyPlot, EscapesNames) { EXPECT_EQ(escaped("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;"); }

}  // namespace
}  // namespace gradsieve::study
