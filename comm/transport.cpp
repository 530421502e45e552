// SPDX-License-Identifier: Apache-2.0
#include "gradsieve/transport.hpp"

namespace gradsieve {

Status Transport::dense_all_reduce(TensorView) noexcept {
  return {Code::unsupported, "this transport has no all-reduce of its own"};
}

}  // namespace gradsieve
