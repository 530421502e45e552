// SPDX-License-Identifier: Apache-2.0
// The parameter `rounding` of the value codecs.
#pragma once

#include <string>

#include "gradsieve/registry.hpp"

#include "kernels/ops.hpp"

namespace gradsieve {

[[nodiscard]] inline ParamInfo rounding_param(std::string default_value) {
  return {.name = "rounding",
          .type = ParamType::choice,
          .default_value = std::move(default_value),
          .choices = {"nearest", "stochastic"},
          .summary = "nearest goes with feedback; stochastic is unbiased without it"};
}

[[nodiscard]] inline kernels::Rounding rounding_of(Params const& params) {
  return params.choice("rounding") == "stochastic" ? kernels::Rounding::stochastic
                                                   : kernels::Rounding::nearest;
}

}  // namespace gradsieve
