// SPDX-License-Identifier: Apache-2.0
// Enums that foreign code filled. C puts any number into one; C++ must not load it as the enum
// then.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve {

/// The number that is there, whether or not it is an enumerator's. A C enum's type has no promises
/// of its own about its values, so its bytes are read.
template <typename Enum>
[[nodiscard]] std::uint32_t number_of(Enum const& given) noexcept {
  static_assert(std::is_enum_v<Enum> && sizeof(Enum) == sizeof(std::uint32_t));
  std::uint32_t number = 0;
  std::memcpy(&number, &given, sizeof number);
  return number;
}

/// The code that a function of others returned; `otherwise` for a number that is none of ours.
template <typename Enum>
[[nodiscard]] Code code_of(Enum const& result, Code otherwise) noexcept {
  constexpr Code kNone = static_cast<Code>(1);
  Code const code = static_cast<Code>(number_of(result));
  return code_name(code) == code_name(kNone) ? otherwise : code;
}

}  // namespace gradsieve
