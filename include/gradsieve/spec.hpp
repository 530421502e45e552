// SPDX-License-Identifier: Apache-2.0
// Spec strings:  topk(density=0.01) | int8(block=256) | index(auto) ; feedback=residual ;
// exchange=auto
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gradsieve {

/// `name(key=value, ...)`. A value without a key is stored under the empty key.
struct Stage {
  std::string name;
  struct Argument {
    std::string key;
    std::string value;
    friend bool operator==(Argument const&, Argument const&) = default;
  };
  std::vector<Argument> arguments;
  friend bool operator==(Stage const&, Stage const&) = default;
};

/// `key=name(key=value, ...)` behind a semicolon.
struct Clause {
  std::string key;
  Stage value;
  friend bool operator==(Clause const&, Clause const&) = default;
};

/// A parsed configuration; only its grammar has been checked.
///
///   spec   := chain (';' clause)*        chain  := stage ('|' stage)*
///   stage  := name [ '(' [argument (',' argument)*] ')' ]
///   clause := key '=' (stage | digits)   argument := [key '='] value
///
/// Names and keys are [a-z][a-z0-9_]*; values are anything but `,()|;=` and blanks. Other spellings
/// of a name (topK, top-k) pass the grammar, so that the registry can say what was meant.
struct Spec {
  std::vector<Stage> chain;
  std::vector<Clause> clauses;
  friend bool operator==(Spec const&, Spec const&) = default;
};

/// Throws Error(invalid_argument) that shows the position and what was expected there.
[[nodiscard]] Spec parse_spec(std::string_view text);
/// Writes it back with single blanks; parse_spec(format_spec(s)) equals s.
[[nodiscard]] std::string format_spec(Spec const& spec);

}  // namespace gradsieve
