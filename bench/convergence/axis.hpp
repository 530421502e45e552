// SPDX-License-Identifier: Apache-2.0
// Where the axes of a plot begin and end, and what is written along them.
#pragma once

#include <string>
#include <vector>

namespace gradsieve::study {

enum class Scale { linear, log };
enum class Unit { plain, percent, bytes, seconds, milliseconds, times };

struct Tick {
  double value = 0.0;
  std::string label;  ///< empty for a minor tick
};

/// A number with its unit, as short as it can be read: "12.5 MB", "2 min", "85 %", "×80".
[[nodiscard]] std::string format_value(double value, Unit unit);

/// What happens to the upper border of a linear axis: it is rounded up to a tick, or is the last
/// value.
enum class Border { rounded, tight };

/// Maps values to [0, 1] and knows its ticks. A linear axis begins and ends at a tick, a
/// logarithmic one a little outside its values; an empty or single-valued range is widened.
class Axis {
 public:
  Axis(double low, double high, Scale scale, Unit unit, int max_ticks = 6,
       Border border = Border::rounded);

  [[nodiscard]] double position(double value) const noexcept;
  [[nodiscard]] std::vector<Tick> const& ticks() const noexcept { return ticks_; }
  [[nodiscard]] double low() const noexcept { return low_; }
  [[nodiscard]] double high() const noexcept { return high_; }

 private:
  void lay_out_linear(int max_ticks, Border border);
  void lay_out_log(int max_ticks);

  double low_;
  double high_;
  Scale scale_;
  Unit unit_;
  std::vector<Tick> ticks_;
};

}  // namespace gradsieve::study
