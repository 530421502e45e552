// SPDX-License-Identifier: Apache-2.0
// Runs one kernel call at 2^20 elements, for the emulator to count what it moves.
// usage: cuda_traffic list                 the calls and the bytes that each must move, as JSON
//        cuda_traffic CALL SHAPE           runs it
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/ops.hpp"
#include "tests/support/gradient_shapes.hpp"
#include "tests/support/on_device.hpp"
#include "tests/traffic/traffic_calls.hpp"

namespace gradsieve::testing {
namespace {

int list() {
  nlohmann::json calls = nlohmann::json::array();
  for (TrafficCall const& call : traffic_calls()) {
    calls.push_back({{"call", call.name},
                     {"kind", call.kind},
                     {"payload_bytes", call.payload_bytes},
                     {"shapes", call.shapes}});
  }
  std::printf("%s\n", calls.dump().c_str());
  return 0;
}

int run(std::string_view name, std::string_view shape_text) {
  for (TrafficCall const& call : traffic_calls()) {
    if (call.name != name) continue;
    for (Shape const shape : kAllShapes) {
      if (shape_name(shape) != shape_text) continue;
      CudaStep step(call.workspace_bytes);
      call.run(step, shape);
      step.wait();
      if (step.error().ok()) return 0;
      std::fprintf(stderr, "cuda_traffic: %s\n", step.error().message());
      return 1;
    }
  }
  std::fprintf(stderr, "cuda_traffic: no call '%s' or no shape '%s'\n", std::string(name).c_str(),
               std::string(shape_text).c_str());
  return 2;
}

}  // namespace
}  // namespace gradsieve::testing

int main(int argc, char** argv) {
  using namespace gradsieve::testing;
  if (argc == 2 && std::string_view(argv[1]) == "list") return list();
  if (argc == 3) return run(argv[1], argv[2]);
  std::fprintf(stderr, "usage: cuda_traffic list | CALL SHAPE\n");
  return 2;
}
