// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/gsv_file.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "gradsieve/wire.hpp"

namespace gradsieve::cli {
namespace {

class GsvFileTest : public testing::Test {
 protected:
  GsvFileTest()
      : folder_(std::filesystem::temp_directory_path() /
                ("gsv_file_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~GsvFileTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path() const { return folder_ / "a.gsv"; }

  // A file of six elements in a 2 x 3 array; its payload has a body of five bytes.
  std::string written() const {
    std::array<std::byte, wire::kHeaderBytes + 5> payload{};
    wire::write_header({.num_elements = 6, .body_bytes = 5}, payload);
    GsvFile file;
    file.spec = "none ; feedback=none";
    file.dtype = DType::bf16;
    file.seed = 0x0123456789abcdefU;
    file.shape = {2, 3};
    file.payload = payload;
    write_gsv(path(), file);
    std::ifstream in(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  Code code_of(std::string const& content) const {
    Buffer buffer(content.size(), host_memory());
    std::copy_n(reinterpret_cast<std::byte const*>(content.data()), content.size(), buffer.data());
    try {
      static_cast<void>(parse_gsv(std::move(buffer), path()));
    } catch (Error const& error) {
      return error.code();
    }
    return Code::ok;
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(GsvFileTest, LiesAsItIsDrawn) {
  std::string const content = written();

  // 40 fixed, 16 of sizes, 20 of spec, 4 zeros; the payload; its checksum.
  ASSERT_EQ(content.size(), 80U + 69U + 8U);
  auto const* const bytes = reinterpret_cast<std::byte const*>(content.data());
  EXPECT_EQ(content.substr(0, 8), "GSVFILE1");
  EXPECT_EQ(wire::load<std::uint32_t>(bytes + 8), 20U);
  EXPECT_EQ(wire::load<std::uint32_t>(bytes + 12), 2U);
  EXPECT_EQ(wire::load<std::uint64_t>(bytes + 16), 6U);
  EXPECT_EQ(wire::load<std::uint64_t>(bytes + 24), 0x0123456789abcdefU);
  EXPECT_EQ(wire::load<std::uint64_t>(bytes + 32), 2U);
  EXPECT_EQ(wire::load<std::uint64_t>(bytes + 48), 3U);
  EXPECT_EQ(content.substr(56, 24), std::string("none ; feedback=none\0\0\0\0", 24));
  EXPECT_EQ(content.substr(80, 4), "GSV1");
}

TEST_F(GsvFileTest, IsReadBackAsItWasWritten) {
  static_cast<void>(written());

  GsvFile const file = read_gsv(path());

  EXPECT_EQ(file.spec, "none ; feedback=none");
  EXPECT_EQ(file.dtype, DType::bf16);
  EXPECT_EQ(file.seed, 0x0123456789abcdefU);
  EXPECT_EQ(file.shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(file.payload.size(), 69U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.payload.data()) % 16, 0U);
}

TEST_F(GsvFileTest, EveryTruncationAndExtensionIsRejected) {
  std::string const good = written();
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_EQ(code_of(good.substr(0, length)), Code::corrupt_payload) << length;
  }
  EXPECT_EQ(code_of(good + '\0'), Code::corrupt_payload);
}

TEST_F(GsvFileTest, EveryFlippedBitIsRejected) {
  std::string const good = written();
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string damaged = good;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));

    EXPECT_EQ(code_of(damaged), Code::corrupt_payload) << "byte " << bit / 8 << ", bit " << bit % 8;
  }
}

// Somebody who computes the checksum anew can still not make the reader leave the file.
TEST_F(GsvFileTest, HugeFieldsUnderARightChecksumAreRejected) {
  std::string const good = written();
  for (std::size_t const offset : {8U, 16U, 32U, 40U, 48U}) {
    for (std::uint64_t const value :
         {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{1} << 31}) {
      std::string damaged = good;
      auto* const bytes = reinterpret_cast<std::byte*>(damaged.data());
      wire::store(bytes + offset, value);
      std::size_t const end = damaged.size() - 8;
      wire::store(bytes + end, wire::checksum(ConstBytes(bytes, end)));

      EXPECT_EQ(code_of(damaged), Code::corrupt_payload) << offset << " " << value;
    }
  }
}

TEST_F(GsvFileTest, AFileThatCannotBeWrittenLeavesNothing) {
  std::filesystem::path const missing = path().parent_path() / "missing" / "a.gsv";

  EXPECT_THROW(write_gsv(missing, {}), Error);
  EXPECT_TRUE(std::filesystem::is_empty(path().parent_path()));
}

}  // namespace
}  // namespace gradsieve::cli
