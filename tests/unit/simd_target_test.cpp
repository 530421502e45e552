// SPDX-License-Identifier: Apache-2.0
#include "core/simd_target.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "gradsieve/context.hpp"
#include "gradsieve/hook.hpp"
#include "gradsieve/transport.hpp"

namespace gradsieve {
namespace {

class SimdTargetTest : public ::testing::Test {
 protected:
  void TearDown() override {
    ::unsetenv("GRADSIEVE_SIMD");
    force_simd_target(before_);
  }
  SimdTarget before_ = simd_target();
};

bool is_supported(SimdTarget target) {
  auto const targets = supported_simd_targets();
  return std::find(targets.begin(), targets.end(), target) != targets.end();
}

TEST_F(SimdTargetTest, EveryMachineRunsThePortableOne) {
  EXPECT_EQ(supported_simd_targets().front(), SimdTarget::portable);
  EXPECT_TRUE(is_supported(simd_target()));
}

TEST_F(SimdTargetTest, EverySupportedOneCanBeForced) {
  for (SimdTarget const target : supported_simd_targets()) {
    force_simd_target(target);

    EXPECT_EQ(simd_target(), target);
  }
}

TEST_F(SimdTargetTest, ForcingAMissingOneSaysWhatThereIs) {
  for (SimdTarget const target : {SimdTarget::avx2, SimdTarget::avx512}) {
    if (is_supported(target)) continue;
    try {
      force_simd_target(target);
      ADD_FAILURE() << "no error";
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), Code::unsupported);
      EXPECT_NE(std::string(error.what()).find("portable"), std::string::npos) << error.what();
    }
  }
}

TEST_F(SimdTargetTest, NamesAreThoseOfTheVariable) {
  EXPECT_EQ(simd_target_name(SimdTarget::portable), "portable");
  EXPECT_EQ(simd_target_name(SimdTarget::avx2), "avx2");
  EXPECT_EQ(simd_target_name(SimdTarget::avx512), "avx512");
}

TEST_F(SimdTargetTest, AnUnknownNameInTheVariableIsAnErrorThatListsTheNames) {
  ::setenv("GRADSIEVE_SIMD", "sse9", 1);
  try {
    check_simd_environment();
    FAIL() << "no error";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    EXPECT_STREQ(error.what(), "GRADSIEVE_SIMD is 'sse9'; expected one of: portable, avx2, avx512");
  }
}

TEST_F(SimdTargetTest, AHookIsNotMadeUnderAWrongVariable) {
  LocalGroup group(1);
  auto const code_under = [&](char const* name) {
    ::setenv("GRADSIEVE_SIMD", name, 1);
    try {
      Hook const hook(group.transport(0), {.rules = {{"*", "none"}}});
      return Code::ok;
    } catch (Error const& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      return error.code();
    }
  };

  EXPECT_EQ(code_under("avx-512"), Code::invalid_argument);
  EXPECT_EQ(code_under("portable"), Code::ok);
  for (SimdTarget const target : {SimdTarget::avx2, SimdTarget::avx512}) {
    Code const expected = is_supported(target) ? Code::ok : Code::unsupported;
    EXPECT_EQ(code_under(simd_target_name(target).data()), expected);
  }
}

TEST_F(SimdTargetTest, AnUnsetOrEmptyOrRightVariableIsFine) {
  check_simd_environment();
  ::setenv("GRADSIEVE_SIMD", "", 1);
  check_simd_environment();
  ::setenv("GRADSIEVE_SIMD", "portable", 1);
  check_simd_environment();
}

}  // namespace
}  // namespace gradsieve
