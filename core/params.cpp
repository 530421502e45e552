// SPDX-License-Identifier: Apache-2.0
// Checked parameters, handed out by type.
#include "gradsieve/registry.hpp"

namespace gradsieve {

// The registry has put every declared parameter here, so a miss is a mistake of the plug-in.
template <typename T>
T const& Params::get(std::string_view name) const {
  auto const found = values_.find(name);
  if (found == values_.end()) {
    throw Error(Code::internal, "a plug-in asks for the parameter '" + std::string(name) +
                                    "', which it does not declare");
  }
  T const* const value = std::get_if<T>(&found->second);
  if (value == nullptr) {
    throw Error(Code::internal, "a plug-in asks for the parameter '" + std::string(name) +
                                    "' by another type than it declares");
  }
  return *value;
}

double Params::real(std::string_view name) const { return get<double>(name); }
std::int64_t Params::integer(std::string_view name) const { return get<std::int64_t>(name); }
bool Params::boolean(std::string_view name) const { return get<bool>(name); }
std::string const& Params::choice(std::string_view name) const { return get<std::string>(name); }

}  // namespace gradsieve
