// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include "gradsieve/memory.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace gradsieve {
namespace {

// The arena lies in a Buffer, as in the hook: giving that back also ends the poisoning.
class WorkspaceTest : public ::testing::Test {
 protected:
  Buffer memory_{4096, host_memory()};
  Workspace workspace_{memory_.bytes()};
};

std::uintptr_t address(void const* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

TEST_F(WorkspaceTest, PiecesAreAlignedAndApart) {
  auto const first = workspace_.take<float>(3);
  auto const second = workspace_.take<std::uint64_t>(1);

  ASSERT_EQ(first.size(), 3U);
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(address(first.data()) % Workspace::kAlignment, 0U);
  EXPECT_EQ(address(second.data()) % Workspace::kAlignment, 0U);
  EXPECT_EQ(address(second.data()) - address(first.data()), Workspace::padded(12));
}

TEST_F(WorkspaceTest, TheSumOfPaddedSizesIsEnough) {
  std::size_t const needed = Workspace::padded(1) + Workspace::padded(256) + Workspace::padded(257);
  Workspace workspace(memory_.bytes().first(needed));

  EXPECT_EQ(workspace.take<std::byte>(1).size(), 1U);
  EXPECT_EQ(workspace.take<std::byte>(256).size(), 256U);
  EXPECT_EQ(workspace.take<std::byte>(257).size(), 257U);
  EXPECT_EQ(workspace.peak_bytes(), needed);
  EXPECT_TRUE(workspace.take<std::byte>(1).empty());
}

TEST_F(WorkspaceTest, AnExhaustedArenaGivesAnEmptySpan) {
  EXPECT_TRUE(workspace_.take<std::byte>(4096).empty());
  EXPECT_TRUE(workspace_.take<double>(std::numeric_limits<std::size_t>::max()).empty());
  EXPECT_TRUE(workspace_.take<double>(std::numeric_limits<std::size_t>::max() / 8 + 2).empty());
  EXPECT_TRUE(workspace_.take<double>(0).empty());
  EXPECT_EQ(workspace_.mark(), 0U);
}

TEST_F(WorkspaceTest, AScopeGivesBackWhatWasTakenInIt) {
  static_cast<void>(workspace_.take<float>(1));
  std::size_t const before = workspace_.mark();
  void const* inner = nullptr;
  {
    WorkspaceScope const scope(workspace_);
    inner = workspace_.take<float>(100).data();
  }

  EXPECT_EQ(workspace_.mark(), before);
  EXPECT_EQ(workspace_.take<float>(1).data(), inner);
  EXPECT_EQ(workspace_.peak_bytes(), before + Workspace::padded(400));
}

TEST_F(WorkspaceTest, ResetStartsAnew) {
  void const* const first = workspace_.take<float>(1).data();

  workspace_.reset();

  EXPECT_EQ(workspace_.take<float>(1).data(), first);
}

TEST_F(WorkspaceTest, PiecesAreAlignedInMemoryThatIsNot) {
  Workspace workspace(memory_.bytes().subspan(4));

  auto const piece = workspace.take<float>(5);

  ASSERT_EQ(piece.size(), 5U);
  EXPECT_EQ(address(piece.data()) % Workspace::kAlignment, 0U);
}

TEST(Workspace, WithoutMemoryGivesNothing) {
  Workspace workspace;

  EXPECT_TRUE(workspace.take<float>(1).empty());
  EXPECT_EQ(workspace.capacity_bytes(), 0U);
}

#if defined(__SANITIZE_ADDRESS__)
TEST_F(WorkspaceTest, PoisonsWhatLiesBetweenPiecesAndWhatWasGivenBack) {
  auto const piece = workspace_.take<std::byte>(10);
  std::byte* const begin = piece.data();

  EXPECT_EQ(__asan_region_is_poisoned(begin, 10), nullptr);
  EXPECT_EQ(__asan_address_is_poisoned(begin + 10), 1);
  EXPECT_EQ(__asan_address_is_poisoned(begin + Workspace::padded(10) - 1), 1);
  workspace_.reset();
  EXPECT_EQ(__asan_address_is_poisoned(begin), 1);
}
#endif

}  // namespace
}  // namespace gradsieve
