// SPDX-License-Identifier: Apache-2.0
// Bytes that nobody encoded: an error, or a valid decode, and never a store outside.
#include <gtest/gtest.h>

#include "tests/conformance/conformance_cases.hpp"

namespace gradsieve::testing {
namespace {

class DamageTest : public ::testing::TestWithParam<CountCase> {
 protected:
  void SetUp() override {
    gradient_ = gradient_of(Shape::heavy_tailed, GetParam().num_elements, 6);
    before_ = gradient_of(Shape::gaussian, GetParam().num_elements, 7);
    for (Backend const backend : {Backend::ref, Backend::cpu}) {
      auto& ranks = backend == Backend::ref ? ref_ : cpu_;
      ranks = std::make_unique<SimulatedRanks>(GetParam().spec_case.chain,
                                               whole_tensor("w", GetParam().num_elements),
                                               SimulationOptions{.backend = backend});
      Outcome const outcome = ranks->step(2, {gradient_});
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
      body_ = outcome.bodies.back()[0];
    }
  }

  /// Decodes on both backends and checks what holds for any bytes; true if they were taken.
  bool decodes(ByteVector const& bytes) {
    Floats by_ref = before_;
    Floats by_cpu = before_;
    bool intact = true;
    Status const ref_status = ref_->decode_add(0, 2, bytes, 1.0, by_ref, intact);
    Status const cpu_status = cpu_->decode_add(0, 2, bytes, 1.0, by_cpu, intact);
    EXPECT_TRUE(intact) << "a store outside the accumulator or the workspace";
    EXPECT_EQ(ref_status.code(), cpu_status.code()) << "backends disagree";
    if (ref_status.ok()) {
      EXPECT_PRED2(same_bits, by_ref, by_cpu);
    } else {
      EXPECT_EQ(ref_status.code(), Code::corrupt_payload) << ref_status.message();
      EXPECT_PRED2(same_bits, by_ref, before_) << "stored before it had checked";
      EXPECT_PRED2(same_bits, by_cpu, before_) << "stored before it had checked";
    }
    return ref_status.ok();
  }

  Floats gradient_;
  Floats before_;
  ByteVector body_;
  std::unique_ptr<SimulatedRanks> ref_;
  std::unique_ptr<SimulatedRanks> cpu_;
};

TEST_P(DamageTest, RejectsEveryTruncatedBody) {
  for (std::size_t length = 0; length < body_.size(); ++length) {
    ASSERT_FALSE(decodes({body_.begin(), body_.begin() + static_cast<std::ptrdiff_t>(length)}))
        << "a body of " << body_.size() << " bytes cut to " << length;
  }
}

TEST_P(DamageTest, RejectsBytesBehindTheBody) {
  for (std::size_t const more : {1u, 2u, 4u, 8u, 16u, 4096u}) {
    ByteVector longer = body_;
    longer.resize(body_.size() + more);
    ASSERT_FALSE(decodes(longer)) << more << " bytes more";
  }
}

TEST_P(DamageTest, SurvivesEveryFlippedBit) {
  for (std::size_t at = 0; at < body_.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      SCOPED_TRACE("byte " + std::to_string(at) + ", bit " + std::to_string(bit));
      ByteVector flipped = body_;
      flipped[at] ^= static_cast<std::byte>(1u << bit);
      decodes(flipped);
      if (HasFailure()) return;
    }
  }
}

TEST_P(DamageTest, SurvivesBytesOfNoMeaning) {
  ShapeNoise const noise(99);
  for (std::uint64_t trial = 0; trial < 400; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    ByteVector bytes = body_;
    std::uint64_t const num_changes = trial < 200 ? 1 + trial % 4 : bytes.size();
    for (std::uint64_t change = 0; change < num_changes && !bytes.empty(); ++change) {
      auto const random = noise.bits(1000 * trial + change);
      bytes[random[0] % bytes.size()] = static_cast<std::byte>(random[1]);
    }
    decodes(bytes);
    if (HasFailure()) return;
  }
}

TEST_P(DamageTest, SurvivesForeignBodies) {
  for (SpecCase const& other : default_specs()) {
    SCOPED_TRACE("body of " + other.spec);
    for (std::size_t const count : {std::size_t{7}, GetParam().num_elements, std::size_t{300}}) {
      SimulatedRanks ranks(other.chain, whole_tensor("w", count), {});
      Outcome const outcome = ranks.step(2, {gradient_of(Shape::heavy_tailed, count, 6)});
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
      decodes(outcome.bodies.back()[0]);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, DamageTest,
                         ::testing::ValuesIn(with_counts(all_specs(), {0, 1, 33, 255})),
                         count_case_name);

class AgreementDamageTest : public ::testing::TestWithParam<CountCase> {};

TEST_P(AgreementDamageTest, RejectsOrSurvivesEveryChangedWord) {
  auto const& [spec_case, count] = GetParam();
  Compressor const& compressor = *spec_case.chain.compressor;
  TensorInfo const piece = whole_tensor("w", count);
  SimulatedRanks ranks(spec_case.chain, piece, {});
  Outcome const outcome = ranks.step(0, {gradient_of(Shape::heavy_tailed, count, 6)});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  ByteVector const good = outcome.bodies[0][0];
  Guarded<std::byte> scratch(compressor.workspace_bytes(piece));
  StepWords words;

  auto const absorb = [&](ByteVector const& bytes) {
    TestSlots slots(compressor, piece);
    Workspace workspace(scratch.span());
    ConstBytes const received[] = {bytes};
    Status const status = compressor.absorb({.workspace = &workspace, .words = &words}, 0, piece,
                                            received, slots.view());
    EXPECT_TRUE(status.ok() || status.code() == Code::corrupt_payload) << status.message();
    return status.ok();
  };

  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(absorb({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)}))
        << "cut to " << length;
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      ByteVector flipped = good;
      flipped[at] ^= static_cast<std::byte>(1u << bit);
      absorb(flipped);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Registry, AgreementDamageTest,
                         ::testing::ValuesIn(with_counts(specs_that([](Chain const& c) {
                                                           return c.compressor->num_rounds() > 1;
                                                         }),
                                                         {1, 33, 255})),
                         count_case_name);

}  // namespace
}  // namespace gradsieve::testing
