// SPDX-License-Identifier: Apache-2.0
// Every spec on every number of elements and every shape of gradient: the bytes, and where they go.
#include <bit>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/conformance/conformance_cases.hpp"

namespace gradsieve::testing {
namespace {

class EncodeTest : public ::testing::TestWithParam<ShapeCase> {
 protected:
  [[nodiscard]] std::size_t count() const { return GetParam().num_elements; }
  /// On the longest tensor ref is slow, and its bytes are compared with those of cpu anyway.
  [[nodiscard]] std::vector<Backend> backends() const {
    if (count() == kElementCounts.back()) return {Backend::cpu};
    return {Backend::ref, Backend::cpu};
  }
  [[nodiscard]] Outcome run(SimulationOptions options, std::uint64_t step = 3) const {
    SimulatedRanks ranks(GetParam().spec_case.chain, whole_tensor("conv1.weight", count()),
                         options);
    ranks.set_residual(0, gradient_of(Shape::heavy_tailed, count(), 77));
    return ranks.step(step, {gradient_of(GetParam().shape, count())});
  }
};

TEST_P(EncodeTest, GivesTheSameBytesOnEveryBackendAndThreadCount) {
  Outcome const expected = run({.backend = Backend::ref});
  ASSERT_TRUE(expected.status.ok()) << expected.status.message();
  ASSERT_TRUE(expected.intact) << "ref stored outside what it was given";

  for (int const num_threads : {1, 2, 3, 7}) {
    Outcome const outcome = run({.backend = Backend::cpu, .num_threads = num_threads});
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_TRUE(outcome.intact) << "cpu stored outside what it was given";
    EXPECT_EQ(outcome.bodies, expected.bodies) << num_threads << " threads";
    EXPECT_EQ(outcome.flags, expected.flags);
    EXPECT_PRED2(same_bits, outcome.mean, expected.mean);
  }
}

TEST_P(EncodeTest, TakesAnyAlignment) {
  Outcome const expected = run({});

  Outcome const outcome = run({.offset_bytes = sizeof(float)});

  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_TRUE(outcome.intact);
  EXPECT_EQ(outcome.bodies, expected.bodies);
  EXPECT_PRED2(same_bits, outcome.mean, expected.mean);
}

TEST_P(EncodeTest, DecodesWhatIsFiniteFromAnyGradient) {
  Outcome const outcome = run({});

  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  for (std::size_t i = 0; i < count(); ++i) {
    ASSERT_TRUE(std::isfinite(outcome.mean[i])) << "element " << i;
  }
}

TEST_P(EncodeTest, SaysWhetherAnElementWasNotFinite) {
  Floats const gradient = gradient_of(GetParam().shape, count());
  bool const any =
      !std::all_of(gradient.begin(), gradient.end(), [](float x) { return std::isfinite(x); });

  Outcome const outcome = run({});

  EXPECT_EQ((outcome.flags[0] & kStepNonFinite) != 0, any);
}

TEST_P(EncodeTest, DecodeAddAddsAndDoesNotOverwrite) {
  TensorInfo const piece = whole_tensor("conv1.weight", count());
  for (Backend const backend : backends()) {
    SimulatedRanks ranks(GetParam().spec_case.chain, piece, {.backend = backend, .num_threads = 2});
    Outcome const outcome = ranks.step(3, {gradient_of(GetParam().shape, count())});
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    Floats const decoded = ranks.decode_own(0, 3, outcome);
    Floats const before = gradient_of(Shape::gaussian, count(), 5);
    constexpr float kWeight = 0.3F;

    Floats after = before;
    bool intact = true;
    Status const status =
        ranks.decode_add(0, 3, outcome.bodies.back()[0], double{kWeight}, after, intact);

    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(intact);
    for (std::size_t i = 0; i < count(); ++i) {
      float const product = kWeight * decoded[i];
      ASSERT_EQ(after[i], before[i] + product) << "element " << i;
    }
  }
}

TEST_P(EncodeTest, KeepsExactlyWhatItDidNotSend) {
  TensorInfo const piece = whole_tensor("conv1.weight", count());
  Chain const chain = with_feedback(GetParam().spec_case);
  if (chain.compressor->claims().residual != ResidualRule::own_payload) return;
  for (Backend const backend : backends()) {
    SimulatedRanks ranks(chain, piece, {.backend = backend, .num_threads = 2});
    Floats const gradient = gradient_of(GetParam().shape, count());
    Floats const before = gradient_of(Shape::heavy_tailed, count(), 77);
    ranks.set_residual(0, before);

    Outcome const outcome = ranks.step(3, {gradient});

    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    Floats const decoded = ranks.decode_own(0, 3, outcome);
    Floats const after = ranks.residual(0);
    for (std::size_t i = 0; i < count(); ++i) {
      float const sum = gradient[i] + before[i];
      float const corrected = std::isfinite(sum) ? sum : before[i];
      // One subtraction in f32 by definition, hence no tolerance; +0 and −0 are the same number.
      ASSERT_EQ(after[i], corrected - decoded[i]) << "element " << i;
    }
  }
}

TEST_P(EncodeTest, GivesTheSameBitsFusedAndInThreeSteps) {
  TensorInfo const piece = whole_tensor("conv1.weight", count());
  Chain const chain = with_feedback(GetParam().spec_case);
  if (chain.compressor->num_rounds() != 1)
    return;  // rounds beyond the first need the others' words
  Floats const gradient = gradient_of(GetParam().shape, count());
  Floats const before = gradient_of(Shape::heavy_tailed, count(), 77);
  SimulatedRanks fused(chain, piece, {});
  fused.set_residual(0, before);
  Outcome const outcome = fused.step(3, {gradient});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();

  Floats corrected(count());
  for (std::size_t i = 0; i < count(); ++i) {
    float const sum = gradient[i] + before[i];
    corrected[i] = std::isfinite(sum) ? sum : before[i];
  }
  PlainEncode const plain = encode_plainly(chain, piece, 3, corrected);

  ASSERT_TRUE(plain.status.ok()) << plain.status.message();
  EXPECT_TRUE(plain.intact);
  EXPECT_EQ(plain.body, outcome.bodies[0][0]);
}

// A hook takes a failed step back, so what is left must be c in full, wherever encoding stopped.
TEST_P(EncodeTest, LeavesTheCorrectedGradientWhereItFails) {
  Chain const chain = with_feedback(GetParam().spec_case);
  if (chain.compressor->num_rounds() != 1 || count() == 0 || count() > 1025) return;
  Floats const gradient = gradient_of(GetParam().shape, count());
  Floats const before = gradient_of(Shape::heavy_tailed, count(), 77);
  Floats corrected(count());
  float largest = 0.0F;
  for (std::size_t i = 0; i < count(); ++i) {
    float const sum = gradient[i] + before[i];
    corrected[i] = std::isfinite(sum) ? sum : before[i];
    largest = std::max(largest, std::fabs(corrected[i]));
  }
  std::size_t const needed = encode_in_place(chain, count(), gradient, before, SIZE_MAX).num_bytes;

  for (std::size_t const room : {std::size_t{0}, needed / 2, needed - 1}) {
    InPlaceEncode const cut = encode_in_place(chain, count(), gradient, before, room);

    ASSERT_FALSE(cut.status.ok()) << room << " of " << needed << " bytes";
    EXPECT_EQ(cut.num_bytes, 0U);
    for (std::size_t i = 0; i < count(); ++i) {
      // (c − ĉ) + ĉ where a quantizer had come to its end: two roundings, each of a number not
      // above the largest of the block.
      float const tolerance = 0x1p-22F * largest;
      ASSERT_NEAR(cut.residual[i], corrected[i], tolerance) << "element " << i << ", room " << room;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, EncodeTest, ::testing::ValuesIn(all_shape_cases()),
                         shape_case_name);

}  // namespace
}  // namespace gradsieve::testing
