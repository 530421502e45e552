// SPDX-License-Identifier: Apache-2.0
// What a hook has to do on every transport. A check returns what it found wrong, or nothing; it is
// called by all ranks, and every rank can compute what all of them bring.
#pragma once

#include <array>
#include <cmath>
#include <string>

#include "tests/support/hook_rank.hpp"
#include "tests/support/plugin_specs.hpp"
#include "tests/support/simulated_ranks.hpp"

namespace gradsieve::testing {

/// Several steps over several tensors: all ranks agree on a hash of every result.
[[nodiscard]] std::string check_same_bits(Transport& transport, std::string const& spec);

/// Results and residuals equal SimulatedRanks, with the exchange that is the plain definition.
[[nodiscard]] std::string check_definition(Transport& transport, std::string const& spec);

/// exchange=two_shot equals the reference function of the exchange, and the owner's second rounding
/// waits in its residual.
[[nodiscard]] std::string check_two_shot(Transport& transport, std::string const& spec);

/// Asks all ranks for a word; true if it is the same everywhere.
[[nodiscard]] bool all_agree(Transport& transport, std::uint64_t word);

}  // namespace gradsieve::testing
