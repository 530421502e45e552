// SPDX-License-Identifier: Apache-2.0
// A hook on a device beside one on the CPU: the same gradients, the same steps, the same bits.
#pragma once

#include <string>
#include <vector>

#include "tests/support/cuda_hook_rank.hpp"

namespace gradsieve::testing {

struct HookCase {
  std::string spec;
  Rollback rollback = Rollback::merge;
  OnNonFinite on_nonfinite = OnNonFinite::propagate;
  std::uint64_t steps = 6;
  DType dtype = DType::f32;
  /// For sums in another order than that of the ranks: the sum of whole numbers has no order.
  bool whole_numbers = false;
  /// Beside small tensors, which are coded together, one that is too long for that.
  bool with_long_tensor = false;
};

/// Specs with a claim `cuda` among the defaults and combinations, under error feedback.
[[nodiscard]] std::vector<std::string> cuda_specs();

/// Kernel launches, fills and copies of one step over a transport in stream order, for a bucket of
/// so many tensors.
[[nodiscard]] std::size_t count_launches(Transport& device, std::string const& spec,
                                         std::size_t num_tensors);

/// Steps with other loss scales, one with a NaN (rolled back), one that is refused: after each, the
/// status, the results if it committed, and the residuals are those of the CPU, bit for bit.
/// `device` and `host` connect the same ranks. Empty, or what differs.
[[nodiscard]] std::string check_like_cpu(Transport& device, Transport& host, HookCase const& c);

/// The same where the device's steps are one graph: the first step runs as it is, the second is
/// captured, and from there on it is replayed with other gradients, steps, loss scales and
/// densities.
[[nodiscard]] std::string check_graph_like_cpu(Transport& device, Transport& host,
                                               HookCase const& c);

}  // namespace gradsieve::testing
