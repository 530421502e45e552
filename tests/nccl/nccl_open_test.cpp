// SPDX-License-Identifier: Apache-2.0
// What is said where NCCL cannot be opened. Needs neither a device nor NCCL.
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "gradsieve/nccl.hpp"

#include "comm/nccl/nccl_api.hpp"

namespace gradsieve {
namespace {

std::string complaint(char const* path) {
  try {
    static_cast<void>(open_nccl(path));
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), Code::unsupported);
    return error.what();
  }
  ADD_FAILURE() << path << " was opened";
  return {};
}

bool says(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

TEST(NcclOpen, SaysWhatWasTriedAndWhatIsExpected) {
  std::string const text = complaint("/nowhere/libnccl.so.2");
  EXPECT_TRUE(says(text, "NCCL cannot be opened: tried /nowhere/libnccl.so.2")) << text;
  EXPECT_TRUE(says(text, "expected NCCL 2.18 or newer")) << text;
  EXPECT_TRUE(says(text, "GRADSIEVE_NCCL_LIBRARY")) << text;
}

TEST(NcclOpen, SaysHowOldALibraryIs) {
  std::string const text = complaint(GSV_OLD_NCCL);
  EXPECT_TRUE(says(text, "version 2.14.3; expected NCCL 2.18 or newer")) << text;
}

TEST(NcclOpen, NamesTheFunctionThatIsMissing) {
  std::string const text = complaint(GSV_ODD_NCCL);
  EXPECT_TRUE(says(text, "has no ncclGetUniqueId")) << text;
}

TEST(NcclOpen, TheEnvironmentNamesTheLibrary) {
  ::setenv("GRADSIEVE_NCCL_LIBRARY", "/nowhere/else.so", 1);
  LocalGroup group(1);
  try {
    static_cast<void>(make_nccl_transport(group.transport(0)));
    ADD_FAILURE() << "made without NCCL";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), Code::unsupported);
    EXPECT_TRUE(says(error.what(), "make_nccl_transport: NCCL cannot be opened")) << error.what();
    EXPECT_TRUE(says(error.what(), "/nowhere/else.so")) << error.what();
  }
  ::unsetenv("GRADSIEVE_NCCL_LIBRARY");
}

TEST(NcclOpen, VersionsAreReadable) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
}

}  // namespace
}  // namespace gradsieve
