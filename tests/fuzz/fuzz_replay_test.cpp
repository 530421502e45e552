// SPDX-License-Identifier: Apache-2.0
// The fuzzers' corpus and the encoders' own bodies once more, in every ordinary build.
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "gradsieve/wire.hpp"

#include "tests/fuzz/bounded_allocator.hpp"
#include "tests/fuzz/fuzz_target.hpp"

namespace gradsieve::testing {
namespace {

/// corpus/NAME.bin: for each input its length (u32) and its bytes.
std::vector<FuzzInput> corpus_of(std::string const& name) {
  std::ifstream file(std::string(FUZZ_CORPUS_DIR) + "/" + name + ".bin", std::ios::binary);
  std::string const text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  InputReader reader(std::as_bytes(std::span(text)));
  std::vector<FuzzInput> inputs;
  while (!reader.rest().empty()) {
    ConstBytes const input = reader.take(static_cast<std::size_t>(reader.number(4)));
    inputs.emplace_back(input.begin(), input.end());
  }
  return inputs;
}

class FuzzReplay : public ::testing::TestWithParam<std::string> {};

// A broken promise aborts the program; the sentence is on stderr.
TEST_P(FuzzReplay, EveryInputKeepsThePromises) {
  FuzzTarget const& target = *find_fuzz_target(GetParam());
  std::vector<FuzzInput> const corpus = corpus_of(target.name);
  ASSERT_FALSE(corpus.empty()) << "tests/fuzz/corpus has no inputs for this target; tools/fuzz_all "
                                  "--grow makes them";
  for (FuzzInput const& input : corpus) target.run(input);
  for (FuzzInput const& input : target.seeds()) target.run(input);
}

std::vector<std::string> target_names() {
  std::vector<std::string> names;
  for (FuzzTarget const& target : fuzz_targets()) names.push_back(target.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Targets, FuzzReplay, ::testing::ValuesIn(target_names()),
                         [](auto const& c) { return c.param; });

TEST(AllocationBoundDeathTest, AnAllocationBeyondTheBoundEndsTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto const allocate = [](std::size_t num_bytes) {
    AllocationBound const bound(1000);
    std::vector<char> const memory(num_bytes);
    return AllocationBound::left();
  };
  EXPECT_EQ(allocate(400), 600u);
  EXPECT_DEATH(allocate(1001), "the bound leaves 1000");
}

}  // namespace
}  // namespace gradsieve::testing
