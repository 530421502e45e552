// SPDX-License-Identifier: Apache-2.0
// Claims as lists show them.
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "gradsieve/compressor.hpp"

namespace gradsieve::cli {

/// Name and value of every claim, in the order of their declaration.
[[nodiscard]] inline std::vector<std::pair<std::string, std::string>> claims_text(
    Claims const& claims) {
  auto const word = [](bool holds) { return holds ? "yes" : "no"; };
  auto const rounded = [](double number) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%.4g", number);
    return std::string(digits);
  };
  return {{"deterministic", word(claims.deterministic)},
          {"lossless", word(claims.lossless)},
          {"fixed_rate", word(claims.fixed_rate)},
          {"unbiased", word(claims.unbiased)},
          {"shared_indices", word(claims.shared_indices)},
          {"elementwise", word(claims.elementwise)},
          {"f64", word(claims.f64)},
          {"cuda", word(claims.cuda)},
          {"contraction", rounded(claims.contraction)},
          {"residual", claims.residual == ResidualRule::own_payload ? "own_payload" : "aggregate"}};
}

}  // namespace gradsieve::cli
