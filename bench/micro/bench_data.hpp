// SPDX-License-Identifier: Apache-2.0
// What is compressed: drawn distributions and recorded gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradsieve::bench {

enum class Distribution { gauss, heavy, ties, sorted, zeros, rows, recorded };
[[nodiscard]] char const* distribution_name(Distribution distribution);

/// `seed` separates a gradient from the residual that lies beside it. `recorded` repeats the arrays
/// of `trace_folder` (.npy files that gradsieve-study --dump-gradients wrote), each time with
/// another factor near 1, so that the repetition makes no ties. Throws Error where there are none.
[[nodiscard]] std::vector<float> make_distribution(Distribution distribution,
                                                   std::uint64_t num_elements, std::uint64_t seed,
                                                   std::string const& trace_folder);

}  // namespace gradsieve::bench
