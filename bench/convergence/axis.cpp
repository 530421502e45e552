// SPDX-License-Identifier: Apache-2.0
#include "bench/convergence/axis.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <span>

namespace gradsieve::study {
namespace {

constexpr std::array<double, 3> kSteps = {1.0, 2.0, 5.0};
// Against the rounding of sums of decimal steps.
constexpr double kTolerance = 1e-9;

// At most `digits` significant digits, without trailing zeros, and without an exponent.
std::string short_number(double value, int digits) {
  if (value == 0.0) return "0";
  auto const magnitude = static_cast<int>(std::floor(std::log10(std::fabs(value))));
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", std::clamp(digits - 1 - magnitude, 0, 12), value);
  std::string result = text;
  if (result.find('.') != std::string::npos) {
    while (result.back() == '0') result.pop_back();
    if (result.back() == '.') result.pop_back();
  }
  return result == "-0" ? "0" : result;
}

std::string with_prefix(double value, std::array<char const*, 5> const& units) {
  std::size_t i = 0;
  for (; i + 1 < units.size() && std::fabs(value) >= 999.5; ++i) value /= 1000.0;
  return short_number(value, 3) + "\u202f" + units[i];
}

// The largest of 1, 2, 5 times a power of ten that is not above the value.
double step_below(double value) {
  double const decade = std::pow(10.0, std::floor(std::log10(value) + kTolerance));
  double best = decade;
  for (double const step : kSteps) {
    if (step * decade <= value * (1.0 + kTolerance)) best = step * decade;
  }
  return best;
}

double next_step(double step) {
  double const decade = std::pow(10.0, std::floor(std::log10(step) + kTolerance));
  for (double const factor : kSteps) {
    if (factor * decade > step * (1.0 + kTolerance)) return factor * decade;
  }
  return 10.0 * decade;
}

// Values of the form factor times a power of ten within the borders.
std::vector<double> log_steps(double low, double high, std::span<double const> factors) {
  std::vector<double> values;
  for (double decade = std::pow(10.0, std::floor(std::log10(low))); decade <= high;
       decade *= 10.0) {
    for (double const factor : factors) {
      double const value = factor * decade;
      if (value >= low * (1.0 - kTolerance) && value <= high * (1.0 + kTolerance))
        values.push_back(value);
    }
  }
  return values;
}

}  // namespace

std::string format_value(double value, Unit unit) {
  switch (unit) {
    case Unit::percent:
      return short_number(100.0 * value, 4) + "\u202f%";
    case Unit::bytes:
      return with_prefix(value, {"B", "kB", "MB", "GB", "TB"});
    case Unit::times:
      return "×" + short_number(value, 3);
    case Unit::milliseconds:
      return short_number(value, 3) + "\u202fms";
    case Unit::seconds:
      return value < 180.0 ? short_number(value, 3) + "\u202fs"
                           : short_number(value / 60.0, 3) + "\u202fmin";
    case Unit::plain:
      break;
  }
  return std::fabs(value) >= 10'000.0 ? with_prefix(value, {"", "k", "M", "G", "T"})
                                      : short_number(value, 4);
}

Axis::Axis(double low, double high, Scale scale, Unit unit, int max_ticks, Border border)
    : low_(low), high_(high), scale_(scale), unit_(unit) {
  bool const is_usable = std::isfinite(low) && std::isfinite(high) && low <= high &&
                         (scale == Scale::linear || low > 0.0);
  if (!is_usable) {
    low_ = scale == Scale::log ? 1.0 : 0.0;
    high_ = scale == Scale::log ? 10.0 : 1.0;
  }
  if (scale_ == Scale::log) {
    lay_out_log(max_ticks);
  } else {
    lay_out_linear(max_ticks, border);
  }
}

double Axis::position(double value) const noexcept {
  if (scale_ == Scale::log) return std::log(value / low_) / std::log(high_ / low_);
  return (value - low_) / (high_ - low_);
}

void Axis::lay_out_linear(int max_ticks, Border border) {
  if (low_ == high_) {
    double const margin = low_ == 0.0 ? 1.0 : 0.05 * std::fabs(low_);
    low_ -= margin;
    high_ += margin;
  }
  double step = step_below((high_ - low_) / max_ticks);
  while (std::ceil(high_ / step - kTolerance) - std::floor(low_ / step + kTolerance) > max_ticks)
    step = next_step(step);
  double const first = std::floor(low_ / step + kTolerance);
  double const last = border == Border::tight ? std::floor(high_ / step + kTolerance)
                                              : std::ceil(high_ / step - kTolerance);
  low_ = first * step;
  if (border == Border::rounded) high_ = last * step;
  for (double i = first; i <= last; i += 1.0)
    ticks_.push_back({i * step, format_value(i * step, unit_)});
}

void Axis::lay_out_log(int max_ticks) {
  constexpr std::array<double, 8> kFineSteps = {1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0};
  if (low_ == high_) {
    low_ /= 2.0;
    high_ *= 2.0;
  }
  double const margin = std::pow(high_ / low_, 0.04);
  low_ /= margin;
  high_ *= margin;
  std::vector<double> values = log_steps(low_, high_, kSteps);
  if (values.size() < 3) values = log_steps(low_, high_, kFineSteps);
  if (values.size() < 3) {
    // Within a tenth of a decade a logarithmic axis is nearly linear, and so are its ticks.
    Axis const linear(low_, high_, Scale::linear, unit_, max_ticks);
    values.clear();
    for (Tick const& tick : linear.ticks()) {
      if (tick.value >= low_ && tick.value <= high_) values.push_back(tick.value);
    }
  }
  // Over many decades only the powers of ten are labelled, and of these as many as there is room
  // for.
  bool const decades_only = static_cast<int>(values.size()) > max_ticks && high_ / low_ > 30.0;
  auto const num_decades = static_cast<int>(std::lround(std::log10(high_ / low_))) + 1;
  int const every = std::max(1, (num_decades + max_ticks - 1) / max_ticks);
  for (double const value : values) {
    double const exponent = std::log10(value);
    bool const is_decade = std::fabs(exponent - std::round(exponent)) < 1e-6;
    bool const labelled = !decades_only || (is_decade && std::lround(exponent) % every == 0);
    ticks_.push_back({value, labelled ? format_value(value, unit_) : ""});
  }
}

}  // namespace gradsieve::study
