// SPDX-License-Identifier: Apache-2.0
#include "core/device_architecture.hpp"

#include <gtest/gtest.h>

namespace gradsieve {
namespace {

TEST(DeviceArchitecture, AbiC79MachineCodeRunsOnTheSameMajorVersionAndPtxOnLaterOnes) {
  struct {
    char const* architectures;
    int device;
    bool runs;
  } const cases[] = {
      {"80-real,90", 75, false},      {"80-real,90", 80, true},  {"80-real,90", 86, true},
      {"80-real,90", 90, true},       {"80-real,90", 100, true}, {"80-real,90", 120, true},
      {"80-real", 90, false},         {"80-real", 89, true},     {"86-real", 80, false},
      {"80-virtual", 75, false},      {"80-virtual", 90, true},  {"90", 80, false},
      {"100-real", 90, false},        {"100-real", 103, true},   {"100-real", 120, false},
      {"75-real,90-real", 80, false}, {"", 80, false},
  };
  for (auto const& c : cases)
    EXPECT_EQ(architectures_run_on(c.architectures, c.device), c.runs)
        << c.architectures << " on " << c.device;
}

TEST(DeviceArchitecture, AbiC79ANameOfAnotherFormDecidesNothing) {
  for (char const* const name : {"native", "all-major", "90a", "90a-real"})
    EXPECT_TRUE(architectures_run_on(name, 75)) << name;
}

}  // namespace
}  // namespace gradsieve
