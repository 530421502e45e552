// SPDX-License-Identifier: Apache-2.0
// Case C-87: the checks see what they are there to see. On a transport that swaps two ranks, two
// elements or two messages, each check that could notice has to complain.
#include <algorithm>
#include <atomic>
#include <string>

#include <gtest/gtest.h>

#include "tests/distributed/exchange_checks.hpp"
#include "tests/distributed/faulty_transport.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::test {
namespace {

/// How many ranks find the check violated on the mutated transport.
int num_complaints(NamedCheck const& check, int world_size, FaultyTransport::Fault const& fault,
                   FaultyTransport::Route const& route = {}) {
  std::atomic<int> complaints{0};
  run_ranks(world_size, [&](Transport& inner) {
    FaultyTransport transport(inner, fault, route);
    if (!check.run(transport).empty()) ++complaints;
  });
  return complaints;
}

class Mutation : public testing::TestWithParam<std::size_t> {
 protected:
  [[nodiscard]] NamedCheck const& check() const { return exchange_checks()[GetParam()]; }
};

TEST_P(Mutation, TestingC87ATransportWithoutFaultPasses) {
  EXPECT_EQ(num_complaints(check(), 3, {}), 0) << check().name;
}

// Swaps the first two and the last two eight-byte words (two f32 pairs, or two f64) of each
// message.
TEST_P(Mutation, TestingC87SwappedElementsAreSeen) {
  auto const swap_words = [](int, std::uint64_t, std::vector<std::byte>& bytes) {
    if (bytes.size() >= 16) std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.begin() + 8);
    if (bytes.size() >= 16) std::swap_ranges(bytes.end() - 16, bytes.end() - 8, bytes.end() - 8);
    if (bytes.size() >= 8) std::swap_ranges(bytes.begin(), bytes.begin() + 4, bytes.begin() + 4);
  };
  EXPECT_GT(num_complaints(check(), 3, swap_words), 0) << check().name;
}

// Each rank takes the other two for each other.
TEST_P(Mutation, TestingC87SwappedRanksAreSeen) {
  auto const swap_ranks = [](int own_rank, int peer) {
    return peer == own_rank ? peer : 3 - own_rank - peer;
  };
  EXPECT_GT(num_complaints(check(), 3, {}, swap_ranks), 0) << check().name;
}

INSTANTIATE_TEST_SUITE_P(Checks, Mutation, testing::Range(std::size_t{0}, exchange_checks().size()),
                         [](auto const& instance) {
                           return std::string(exchange_checks()[instance.param].name);
                         });

}  // namespace
}  // namespace gradsieve::test
