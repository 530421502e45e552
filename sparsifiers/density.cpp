// SPDX-License-Identifier: Apache-2.0
#include "sparsifiers/density.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace gradsieve {

std::uint64_t count_of(double density, std::uint64_t num_elements) noexcept {
  if (num_elements == 0) return 0;
  // A product in double would already round for long tensors.
  long double const wanted = static_cast<long double>(density) * num_elements + 0.5L;
  return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, num_elements);
}

DensityRamp::DensityRamp(Params const& params)
    : density_(params.real("density")),
      warmup_density_(params.real("warmup_density")),
      warmup_steps_(static_cast<std::uint64_t>(params.integer("warmup_steps"))) {}

double DensityRamp::at(std::uint64_t step) const noexcept {
  if (step >= warmup_steps_) return density_;
  double const progress = static_cast<double>(step) / static_cast<double>(warmup_steps_);
  double const density = warmup_density_ * std::pow(density_ / warmup_density_, progress);
  // Ranks may link different mathematical libraries, and a shared set has the same size on all of
  // them: the last bits of pow must not decide a count.
  return std::nearbyint(density * 0x1p32) * 0x1p-32;
}

std::uint64_t DensityRamp::count(std::uint64_t num_elements, std::uint64_t step) const noexcept {
  return count_of(at(step), num_elements);
}

std::uint64_t DensityRamp::max_count(std::uint64_t num_elements) const noexcept {
  return std::max(count_of(density_, num_elements), count(num_elements, 0));
}

double DensityRamp::least_fraction() const noexcept {
  return std::min(density_, warmup_steps_ > 0 ? warmup_density_ : density_) * 2.0 / 3.0;
}

std::vector<ParamInfo> DensityRamp::params() {
  return {{.name = "density",
           .type = ParamType::real,
           .unit = "fraction",
           .default_value = "0.01",
           .min = 0.0,
           .max = 1.0,
           .min_excluded = true,
           .summary = "share of the elements that travel"},
          {.name = "warmup_steps",
           .type = ParamType::integer,
           .unit = "steps",
           .default_value = "0",
           .min = 0.0,
           .max = 1e12,
           .summary = "steps in which the density falls from warmup_density to density"},
          {.name = "warmup_density",
           .type = ParamType::real,
           .unit = "fraction",
           .default_value = "1",
           .min = 0.0,
           .max = 1.0,
           .min_excluded = true,
           .summary = "density at step 0 of a warm-up"}};
}

std::vector<ParamInfo> with_hold(std::vector<ParamInfo> params) {
  params.push_back(
      {.name = "hold",
       .type = ParamType::integer,
       .unit = "steps",
       .default_value = "1",
       .min = 1.0,
       .max = 1e12,
       .summary = "steps that a set of indices is kept; above 1 only where all ranks share it"});
  return params;
}

void refuse_hold(std::string_view name, Params const& params) {
  std::int64_t const hold = params.integer("hold");
  if (hold == 1) return;
  throw Error(
      Code::invalid_argument,
      std::string(name) + "(hold=" + std::to_string(hold) +
          "): each rank chooses for itself in each step, so hold must be 1; the sparsifiers "
          "whose set is shared and can be held are cltk and randomk");
}

}  // namespace gradsieve
