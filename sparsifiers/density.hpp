// SPDX-License-Identifier: Apache-2.0
// How many elements travel, and how long a choice is held: the parameters that sparsifiers share.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "gradsieve/registry.hpp"

namespace gradsieve {

/// k = ⌊density·n + 1/2⌋, at least 1 of n > 0, at most n.
[[nodiscard]] std::uint64_t count_of(double density, std::uint64_t num_elements) noexcept;

/// The density of each step: a warm-up that falls exponentially from w to d in T steps.
///
///   density(t) = w·(d/w)^(t/T) for t < T, then d
///
/// Paper: Lin et al., Deep Gradient Compression, ICLR 2018, arXiv:1712.01887, section 3.3.
class DensityRamp {
 public:
  explicit DensityRamp(Params const& params);

  [[nodiscard]] double at(std::uint64_t step) const noexcept;
  [[nodiscard]] bool changes() const noexcept { return warmup_steps_ > 0; }
  [[nodiscard]] std::uint64_t count(std::uint64_t num_elements, std::uint64_t step) const noexcept;
  /// Over all steps: what buffers are made for.
  [[nodiscard]] std::uint64_t max_count(std::uint64_t num_elements) const noexcept;
  /// After the warm-up.
  [[nodiscard]] std::uint64_t settled_count(std::uint64_t num_elements) const noexcept {
    return count_of(density_, num_elements);
  }
  /// k/n is never below this: rounding to the nearest count loses at most a third of density·n.
  [[nodiscard]] double least_fraction() const noexcept;

  /// density, warmup_steps, warmup_density.
  [[nodiscard]] static std::vector<ParamInfo> params();

 private:
  double density_;
  double warmup_density_;
  std::uint64_t warmup_steps_;
};

/// Adds the parameter `hold`: steps that a set of indices is kept.
[[nodiscard]] std::vector<ParamInfo> with_hold(std::vector<ParamInfo> params);

/// `hold` of a sparsifier whose set is not shared: must be 1. Throws Error(invalid_argument) that
/// names the sparsifiers that can hold a set.
void refuse_hold(std::string_view name, Params const& params);

}  // namespace gradsieve
