// SPDX-License-Identifier: Apache-2.0
// Files of `gradsieve encode` against golden ones: read, written again, and damaged.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "bindings/cli/gsv_file.hpp"
#include "tests/golden/golden_index.hpp"

namespace gradsieve::testing {
namespace {

cli::GsvFile parse(std::vector<std::byte> const& bytes) {
  Buffer content(bytes.size(), host_memory());
  std::ranges::copy(bytes, content.data());
  return cli::parse_gsv(std::move(content), "golden.gsv");
}

TEST(GoldenFiles, AreReadFieldByField) {
  for (Json const& entry : golden_index()["files"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());

    cli::GsvFile const file = parse(read_golden(entry["file"].get<std::string>()));

    EXPECT_EQ(file.spec, entry["spec"].get<std::string>());
    EXPECT_EQ(static_cast<int>(file.dtype), entry["dtype"].get<int>());
    EXPECT_EQ(file.seed, word_from_hex(entry["seed"]));
    EXPECT_EQ(file.shape, entry["sizes"].get<std::vector<std::uint64_t>>());
    EXPECT_TRUE(std::ranges::equal(file.payload, from_hex(entry["payload"].get<std::string>())));
  }
}

TEST(GoldenFiles, AreWrittenByteForByte) {
  for (Json const& entry : golden_index()["files"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    std::vector<std::byte> const payload = from_hex(entry["payload"].get<std::string>());
    cli::GsvFile file;
    file.spec = entry["spec"].get<std::string>();
    file.dtype = static_cast<DType>(entry["dtype"].get<int>());
    file.seed = word_from_hex(entry["seed"]);
    file.shape = entry["sizes"].get<std::vector<std::uint64_t>>();
    file.payload = payload;
    std::string const path = ::testing::TempDir() + entry["name"].get<std::string>() + ".gsv";

    cli::write_gsv(path, file);

    std::ifstream stream(path, std::ios::binary);
    std::string const text{std::istreambuf_iterator<char>(stream), {}};
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(text)),
                                   read_golden(entry["file"].get<std::string>())));
    std::remove(path.c_str());
  }
}

TEST(GoldenFiles, AreRefusedWhenDamaged) {
  for (Json const& entry : golden_index()["files"]) {
    for (Json const& damage : entry["damaged"]) {
      SCOPED_TRACE(entry["name"].get<std::string>() + ", " + damage["name"].get<std::string>());
      try {
        static_cast<void>(
            parse(damaged_bytes(read_golden(entry["file"].get<std::string>()), damage)));
        ADD_FAILURE() << "was read";
      } catch (Error const& error) {
        EXPECT_EQ(code_name(error.code()), damage["code"].get<std::string>()) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace gradsieve::testing
