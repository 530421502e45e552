// SPDX-License-Identifier: Apache-2.0
// Many steps in a row: nothing is lost, nothing leaks between tensors, nothing is allocated, and a
// run that was stopped goes on as if it had not been.
#include <cmath>

#include <gtest/gtest.h>

#include "tests/conformance/conformance_cases.hpp"
#include "tests/support/counting_allocator.hpp"

namespace gradsieve::testing {
namespace {

constexpr int kWorldSize = 3;

std::vector<Floats> gradients_of(std::uint64_t step, std::size_t count, std::uint64_t salt = 0) {
  std::vector<Floats> gradients;
  for (std::uint64_t rank = 0; rank < kWorldSize; ++rank) {
    gradients.push_back(
        gradient_of(Shape::heavy_tailed, count, 1000 * salt + 10 * step + rank + 1));
  }
  return gradients;
}

class TrainingTest : public ::testing::TestWithParam<CountCase> {
 protected:
  [[nodiscard]] std::size_t count() const { return GetParam().num_elements; }
  [[nodiscard]] Chain chain() const { return with_feedback(GetParam().spec_case); }
};

TEST_P(TrainingTest, SumOfMeansAndResidualsIsTheSumOfGradients) {
  SimulatedRanks ranks(chain(), whole_tensor("w", count()), {.world_size = kWorldSize});
  std::vector<double> sent(count(), 0.0);
  std::vector<double> given(count(), 0.0);
  std::vector<double> magnitude(count(), 0.0);
  constexpr std::uint64_t kSteps = 24;

  for (std::uint64_t step = 0; step < kSteps; ++step) {
    std::vector<Floats> const gradients = gradients_of(step, count());
    Outcome const outcome = ranks.step(step, gradients);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    for (std::size_t i = 0; i < count(); ++i) {
      sent[i] += outcome.mean[i];
      for (Floats const& gradient : gradients) given[i] += double{gradient[i]} / kWorldSize;
      for (int rank = 0; rank < kWorldSize; ++rank)
        magnitude[i] += std::abs(double{gradients[static_cast<std::size_t>(rank)][i]});
    }
  }

  // Per step and rank: one rounding for g + e, one for c − ĉ, three for the weighted sum, each at
  // most 2^-24 of a number that is at most the sum of all magnitudes so far (doubled, because a
  // quantizer's residual adds to it).
  double const relative = kSteps * kWorldSize * 5 * 0x1p-24 * 2;
  for (std::size_t i = 0; i < count(); ++i) {
    double kept = 0.0;
    for (int rank = 0; rank < kWorldSize; ++rank) {
      kept += double{ranks.residual(rank)[i]} / kWorldSize;
    }
    ASSERT_NEAR(sent[i] + kept, given[i], relative * (magnitude[i] + std::abs(kept)) + 1e-37)
        << "element " << i;
  }
}

TEST_P(TrainingTest, GoesOnFromASavedStateBitForBit) {
  TensorInfo const piece = whole_tensor("w", count());
  SimulatedRanks uninterrupted(chain(), piece, {.world_size = kWorldSize});
  SavedTensor saved;
  for (std::uint64_t step = 0; step < 7; ++step) {
    ASSERT_TRUE(uninterrupted.step(step, gradients_of(step, count())).status.ok());
  }
  saved = uninterrupted.save();

  SimulatedRanks resumed(chain(), piece, {.world_size = kWorldSize});
  resumed.restore(saved);
  for (std::uint64_t step = 7; step < 15; ++step) {
    Outcome const expected = uninterrupted.step(step, gradients_of(step, count()));
    Outcome const outcome = resumed.step(step, gradients_of(step, count()));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    ASSERT_EQ(outcome.bodies, expected.bodies) << "step " << step;
    ASSERT_PRED2(same_bits, outcome.mean, expected.mean) << "step " << step;
  }
  for (int rank = 0; rank < kWorldSize; ++rank) {
    EXPECT_PRED2(same_bits, resumed.residual(rank), uninterrupted.residual(rank));
  }
}

TEST_P(TrainingTest, TwoTensorsDoNotInfluenceEachOther) {
  TensorInfo const piece_a = whole_tensor("a", count());
  TensorInfo const piece_b = whole_tensor("b", count());
  Chain const shared = chain();  // one object serves both
  SimulatedRanks alone(chain(), piece_a, {.world_size = kWorldSize});
  SimulatedRanks a(shared, piece_a, {.world_size = kWorldSize});
  SimulatedRanks b(shared, piece_b, {.world_size = kWorldSize});

  for (std::uint64_t step = 0; step < 8; ++step) {
    Outcome const expected = alone.step(step, gradients_of(step, count()));
    ASSERT_TRUE(b.step(step, gradients_of(step, count(), 5)).status.ok());
    Outcome const outcome = a.step(step, gradients_of(step, count()));
    ASSERT_EQ(outcome.bodies, expected.bodies) << "step " << step;
  }
}

TEST_P(TrainingTest, NothingIsAllocatedInAStep) {
  Compressor const& compressor = *GetParam().spec_case.chain.compressor;
  TensorInfo const piece = whole_tensor("w", count());
  Floats const gradient = gradient_of(Shape::heavy_tailed, count());
  Floats residual(count());
  Floats accumulator(count());
  std::vector<ByteVector> memory;
  for (int round = 0; round < compressor.num_rounds(); ++round) {
    memory.emplace_back(compressor.round(round, piece).capacity_bytes);
  }
  Guarded<std::byte> scratch(compressor.workspace_bytes(piece));
  Workspace workspace(scratch.span());
  ThreadPool threads(2);
  StepWords words;
  TestSlots slots(compressor, piece);
  ExecContext const ctx{.workspace = &workspace, .threads = &threads, .words = &words};
  auto const step = [&](std::uint64_t number) -> Status {
    words.step = number;
    for (int round = 0; round < compressor.num_rounds(); ++round) {
      std::uint64_t num_bytes = 0;
      Body const body(memory[static_cast<std::size_t>(round)], &num_bytes);
      workspace.reset();
      GRADSIEVE_RETURN_IF_ERROR(compressor.encode_with_residual(
          ctx, round, piece, ConstTensorView(std::span<float const>(gradient)),
          {residual, residual, 1.0F}, slots.view(), body));
      ConstBytes const received[] = {body.written()};
      workspace.reset();
      if (round + 1 < compressor.num_rounds()) {
        GRADSIEVE_RETURN_IF_ERROR(compressor.absorb(ctx, round, piece, received, slots.view()));
      } else {
        GRADSIEVE_RETURN_IF_ERROR(compressor.decode_add(ctx, round, piece, received[0], 1.0,
                                                        slots.view(),
                                                        TensorView(std::span<float>(accumulator))));
      }
    }
    return {};
  };
  ASSERT_TRUE(step(0).ok());

  AllocationCount const allocations;
  bool all_ok = true;
  for (std::uint64_t number = 1; number <= 10; ++number) all_ok = step(number).ok() && all_ok;
  std::uint64_t const count = allocations.count();

  EXPECT_TRUE(all_ok);
  EXPECT_EQ(count, 0u) << "allocations in ten steps";
}

INSTANTIATE_TEST_SUITE_P(Registry, TrainingTest,
                         ::testing::ValuesIn(with_counts(all_specs(), {1, 33, 1025})),
                         count_case_name);

TEST(CountingAllocator, CountsWhatIsAllocated) {
  AllocationCount const allocations;
  auto const number = std::make_unique<int>(3);
  EXPECT_GE(allocations.count(), 1u) << *number;
}

}  // namespace
}  // namespace gradsieve::testing
