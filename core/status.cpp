// SPDX-License-Identifier: Apache-2.0
// Names of codes and element types, as users read them.
#include "gradsieve/vocabulary.hpp"

namespace gradsieve {

std::string_view code_name(Code code) noexcept {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::invalid_argument:
      return "invalid_argument";
    case Code::invalid_usage:
      return "invalid_usage";
    case Code::unknown_name:
      return "unknown_name";
    case Code::not_built:
      return "not_built";
    case Code::not_implemented:
      return "not_implemented";
    case Code::unsupported:
      return "unsupported";
    case Code::corrupt_payload:
      return "corrupt_payload";
    case Code::capacity_exceeded:
      return "capacity_exceeded";
    case Code::io_error:
      return "io_error";
    case Code::mismatch:
      return "mismatch";
    case Code::peer_failed:
      return "peer_failed";
    case Code::timeout:
      return "timeout";
    case Code::aborted:
      return "aborted";
    case Code::in_doubt:
      return "in_doubt";
    case Code::forked_child:
      return "forked_child";
    case Code::non_finite:
      return "non_finite";
    case Code::out_of_memory:
      return "out_of_memory";
    case Code::transport_error:
      return "transport_error";
    case Code::device_error:
      return "device_error";
    case Code::internal:
      return "internal";
  }
  // A code may come from a peer of a later version, so this is not a mistake of ours.
  return "unknown";
}

std::string_view dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f64:
      return "f64";
  }
  return "unknown";
}

}  // namespace gradsieve
