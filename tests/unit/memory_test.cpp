// SPDX-License-Identifier: Apache-2.0
#include "gradsieve/memory.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace gradsieve {
namespace {

std::uintptr_t address(Buffer const& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.data());
}

bool all_zero(Bytes bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

TEST(Buffer, SmallBlocksAreAlignedTo256AndZero) {
  for (std::size_t const num_bytes : {1U, 255U, 256U, 257U, 4097U}) {
    Buffer const buffer(num_bytes, host_memory());

    EXPECT_EQ(buffer.num_bytes(), num_bytes);
    EXPECT_EQ(address(buffer) % 256, 0U) << num_bytes;
    EXPECT_TRUE(all_zero(buffer.bytes())) << num_bytes;
  }
}

TEST(Buffer, LargeBlocksAreAlignedToHugePagesAndZero) {
  std::size_t const num_bytes = (std::size_t{2} << 20) + 12345;
  Buffer const buffer(num_bytes, host_memory());

  EXPECT_EQ(address(buffer) % (std::size_t{2} << 20), 0U);
  EXPECT_TRUE(all_zero(buffer.bytes()));
}

TEST(Buffer, AnEmptyOneHoldsNothing) {
  Buffer const none;
  Buffer const zero(0, host_memory());

  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(zero.num_bytes(), 0U);
  EXPECT_TRUE(zero.bytes().empty());
}

TEST(Buffer, MovingHandsTheBlockOver) {
  Buffer first(64, host_memory());
  std::byte* const block = first.data();
  Buffer second(std::move(first));
  Buffer third(16, host_memory());

  third = std::move(second);

  EXPECT_EQ(third.data(), block);
  EXPECT_EQ(third.num_bytes(), 64U);
}

TEST(Buffer, SpansCountWholeElements) {
  Buffer const buffer(10, host_memory());

  EXPECT_EQ(buffer.as<float>().size(), 2U);
}

TEST(HostMemory, RefusesWhatNoMachineHas) {
  for (std::size_t const num_bytes :
       {std::numeric_limits<std::size_t>::max(), std::numeric_limits<std::size_t>::max() / 2}) {
    try {
      static_cast<void>(host_memory().allocate(num_bytes, {}));
      FAIL() << "no error for " << num_bytes << " bytes";
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), Code::out_of_memory);
    }
  }
}

TEST(HostMemory, GivesBackWhatItGave) {
  void* const block = host_memory().allocate(0, {});

  EXPECT_NE(block, nullptr);
  EXPECT_EQ(host_memory().device(), Device::host);
  host_memory().deallocate(block, 0, {});
}

TEST(Buffer, PutsTheBlockBackWhereItCameFrom) {
  class Counting final : public MemoryResource {
   public:
    void* allocate(std::size_t num_bytes, Stream stream) override {
      taken += num_bytes;
      return host_memory().allocate(num_bytes, stream);
    }
    void deallocate(void* pointer, std::size_t num_bytes, Stream stream) noexcept override {
      taken -= num_bytes;
      host_memory().deallocate(pointer, num_bytes, stream);
    }
    std::size_t taken = 0;
  } resource;

  {
    Buffer const buffer(100, resource);
    EXPECT_EQ(resource.taken, 100U);
  }

  EXPECT_EQ(resource.taken, 0U);
}

}  // namespace
}  // namespace gradsieve
