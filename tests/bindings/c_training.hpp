// SPDX-License-Identifier: Apache-2.0
// Training runs of the C11 client, rank by rank, and what they leave.
#pragma once

#include <bit>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gradsieve/hook.hpp"

#include "tests/bindings/c_client.h"
#include "tests/bindings/c_ranks.hpp"

namespace gradsieve::testing {

struct Outcome {
  std::vector<float> results;
  std::vector<float> residuals;
};

struct Case {
  std::string name;
  std::string spec;
  int world_size = 1;
  Rollback rollback = Rollback::merge;
  std::vector<std::uint64_t> elements = {257, 1, 1025, 64};
};

inline constexpr std::uint32_t kNumSteps = 7;

[[nodiscard]] inline std::uint64_t total(Case const& given) {
  return std::accumulate(given.elements.begin(), given.elements.end(), std::uint64_t{0});
}

/// One rank's run over any communicator.
[[nodiscard]] inline Outcome train_in_c(Case const& given, gsvComm_t comm, gsvContext_t context) {
  ClientJob job = {};
  job.spec = given.spec.c_str();
  job.num_steps = kNumSteps;
  job.rollback = given.rollback == Rollback::exact ? gsvRollbackExact : gsvRollbackMerge;
  for (std::size_t i = 0; i < kClientTensors; ++i) job.tensor_elements[i] = given.elements[i];
  Outcome outcome{std::vector<float>(kNumSteps * total(given)), std::vector<float>(total(given))};
  EXPECT_EQ(client_train(comm, context, &job, outcome.results.data(), outcome.residuals.data()),
            gsvSuccess);
  return outcome;
}

/// All ranks as threads.
[[nodiscard]] inline std::vector<Outcome> train_in_c(Case const& given) {
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(given.world_size);
  std::vector<Outcome> outcomes(comms.size());
  for_each_rank(given.world_size, [&](int rank) {
    auto const r = static_cast<std::size_t>(rank);
    outcomes[r] = train_in_c(given, comms[r].get(), context.get());
  });
  return outcomes;
}

inline void expect_same_bits(std::vector<float> const& expected, std::vector<float> const& actual,
                             std::string const& what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(expected[i]), std::bit_cast<std::uint32_t>(actual[i]))
        << what << ", element " << i << ": expected " << expected[i] << ", got " << actual[i];
  }
}

}  // namespace gradsieve::testing
