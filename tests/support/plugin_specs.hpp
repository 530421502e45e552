// SPDX-License-Identifier: Apache-2.0
// The specs that a registry makes possible: what the conformance suite runs on.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "gradsieve/registry.hpp"

namespace gradsieve::testing {

struct SpecCase {
  std::string name;  ///< fit for a test's name: topk_int8
  std::string spec;  ///< topk | int8
  Chain chain;
};

inline std::ostream& operator<<(std::ostream& out, SpecCase const& c) { return out << c.spec; }

/// Plug-ins that the suite is about: all, or the one that ask_only_about() named before the first
/// use of anything here.
[[nodiscard]] std::vector<PluginInfo const*> plugins_under_test();
void ask_only_about(std::string const& plugin);

/// Every compressor and every sparsifier with its defaults and with each parameter at its ends and
/// choices, every compressor before every byte codec, every sparsifier before int8, sign and each
/// byte codec. Without clauses.
[[nodiscard]] std::vector<SpecCase> const& all_specs();
/// The defaults alone, and the combinations.
[[nodiscard]] std::vector<SpecCase> const& default_specs();
/// Those of all_specs() that make a claim.
[[nodiscard]] std::vector<SpecCase> specs_that(bool (*claim)(Chain const&));

/// Combinations that make_chain refused, with its sentence.
struct RefusedSpec {
  std::string spec;
  bool shared_indices = false;  ///< of the sparsifier in it
  Code code = Code::ok;
  std::string message;
};
[[nodiscard]] std::vector<RefusedSpec> const& refused_specs();

/// The same chain under error feedback.
[[nodiscard]] Chain with_feedback(SpecCase const& spec_case);

/// Parameters that must be given, with a value in range: "(value=0.01)".
[[nodiscard]] std::string required_arguments(PluginInfo const& info);

/// A text made of letters, digits and underscores.
[[nodiscard]] std::string test_name(std::string text);

}  // namespace gradsieve::testing
