// SPDX-License-Identifier: Apache-2.0
// The kernel calls whose memory traffic is counted and held. One function for each group of kernels
// adds its calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/gradient_shapes.hpp"
#include "tests/support/on_device.hpp"

namespace gradsieve::testing {

inline constexpr std::size_t kTrafficElements = std::size_t{1} << 20;

/// `kind` names the bound in tools/kernel_table that the call is held to.
struct TrafficCall {
  std::string name;
  std::string kind;
  double payload_bytes = 0;  ///< written or read beside gradient, residual and accumulator; all
  std::size_t workspace_bytes = 0;
  std::vector<std::string> shapes;
  std::function<void(CudaStep&, Shape)> run;
};

void add_streaming_calls(std::vector<TrafficCall>& calls);
void add_quantizer_calls(std::vector<TrafficCall>& calls);
void add_many_calls(std::vector<TrafficCall>& calls);
void add_many_sparse_calls(std::vector<TrafficCall>& calls);
void add_sparse_calls(std::vector<TrafficCall>& calls);
void add_selection_calls(std::vector<TrafficCall>& calls);

[[nodiscard]] inline std::vector<TrafficCall> traffic_calls() {
  std::vector<TrafficCall> calls;
  add_streaming_calls(calls);
  add_quantizer_calls(calls);
  add_many_calls(calls);
  add_many_sparse_calls(calls);
  add_sparse_calls(calls);
  add_selection_calls(calls);
  return calls;
}

}  // namespace gradsieve::testing
