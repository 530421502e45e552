// SPDX-License-Identifier: Apache-2.0
// Value codecs on data that a person can check, and the faults that others have had.
#include <bit>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/gradient_shapes.hpp"
#include "tests/support/simulated_ranks.hpp"

namespace gradsieve::testing {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::FloatNear;

SimulatedRanks ranks_of(std::string const& spec, std::size_t count, int world_size = 1,
                        std::string_view name = "w") {
  return {make_chain(spec), whole_tensor(name, count), {.world_size = world_size}};
}

std::vector<int> bytes_of(ByteVector const& body) {
  std::vector<int> values;
  for (std::byte const b : body) values.push_back(std::to_integer<int>(b));
  return values;
}

TEST(NoneCodec, SendsTheNumbersThemselves) {
  SimulatedRanks ranks = ranks_of("none", 2);

  Outcome const outcome = ranks.step(0, {{1.0F, -2.5F}});

  EXPECT_THAT(bytes_of(outcome.bodies[0][0]), ElementsAre(0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0));
  EXPECT_EQ(outcome.mean, (Floats{1.0F, -2.5F}));
}

TEST(NoneCodec, TakesDoubles) {
  Chain const chain = make_chain("none");
  TensorInfo const piece = whole_tensor("w", 3, DType::f64);
  std::vector<double> const gradient = {1.0 / 3.0, -1e300, std::nan("1")};
  std::vector<double> accumulator = {1.0, 2.0, 3.0};
  ByteVector memory(chain.compressor->round(0, piece).capacity_bytes);
  std::uint64_t num_bytes = 0;
  Workspace workspace;
  StepWords words;
  ExecContext const ctx{.workspace = &workspace, .words = &words};

  Status const encoded = chain.compressor->encode_with_residual(
      ctx, 0, piece, std::span<double const>(gradient), {}, {}, Body(memory, &num_bytes));
  Status const decoded = chain.compressor->decode_add(ctx, 0, piece, memory, 0.5, {},
                                                      TensorView(std::span<double>(accumulator)));

  ASSERT_TRUE(encoded.ok()) << encoded.message();
  ASSERT_TRUE(decoded.ok()) << decoded.message();
  EXPECT_EQ(num_bytes, 24U);
  EXPECT_EQ(chain.compressor->round(0, piece).sum_type, SumType::f64);
  EXPECT_EQ(accumulator[0], 1.0 + 0.5 / 3.0);
  EXPECT_EQ(accumulator[1], 2.0 - 0.5e300);
  EXPECT_TRUE(std::isnan(accumulator[2]));
}

TEST(Codecs, RefuseDoublesUnlessTheyTakeThem) {
  Chain const chain = make_chain("int8");
  TensorInfo const piece = whole_tensor("w", 1, DType::f64);
  std::vector<double> const gradient = {1.0};
  ByteVector memory(64);
  std::uint64_t num_bytes = 0;
  Workspace workspace;
  StepWords words;

  Status const status = chain.compressor->encode_with_residual(
      {.workspace = &workspace, .words = &words}, 0, piece, std::span<double const>(gradient), {},
      {}, Body(memory, &num_bytes));

  EXPECT_EQ(status.code(), Code::unsupported);
}

TEST(Bf16Codec, RoundsToNearestAndEven) {
  SimulatedRanks ranks = ranks_of("bf16", 4);

  // Half of the last kept bit above 1, below and above; and a number that bf16 would round to
  // infinity.
  Outcome const outcome =
      ranks.step(0, {{0x1.01p0F, 0x1.00fp0F, 0x1.03p0F, std::numeric_limits<float>::max()}});

  EXPECT_EQ(outcome.mean, (Floats{0x1.00p0F, 0x1.00p0F, 0x1.04p0F, 0x1.fep127F}));
  EXPECT_EQ(ranks.residual(0)[0], 0x1p-8F);
}

TEST(Bf16Codec, RoundsUpAsOftenAsTheCutPartSays) {
  constexpr std::size_t kCount = 100000;
  SimulatedRanks ranks = ranks_of("bf16(stochastic)", kCount);

  Outcome const outcome = ranks.step(0, {Floats(kCount, 0x1.006p0F)});  // 3/16 of the last kept bit

  auto const up =
      static_cast<double>(std::count(outcome.mean.begin(), outcome.mean.end(), 0x1.02p0F)) / kCount;
  EXPECT_NEAR(up, 0.1875, 5 * std::sqrt(0.1875 * 0.8125 / kCount));  // five standard deviations
}

TEST(Fp16Codec, SaturatesAtTheLargestHalf) {
  SimulatedRanks ranks = ranks_of("fp16", 4);

  Outcome const outcome = ranks.step(0, {{1.0F / 3.0F, 1e6F, -7e4F, 1e-9F}});

  EXPECT_EQ(outcome.mean, (Floats{0x1.554p-2F, 65504.0F, -65504.0F, 0.0F}));
}

TEST(Int8Codec, WritesCodesPaddingAndScales) {
  SimulatedRanks ranks = ranks_of("int8(block=2)", 5);

  // Scales 1, 2 and 0: 127/127, 254/127, and a block of nothing.
  Outcome const outcome = ranks.step(0, {{127.0F, -3.5F, 254.0F, 9.0F, 0.0F}});

  EXPECT_THAT(bytes_of(outcome.bodies[0][0]),
              ElementsAre(127, 256 - 4, 127, 4, 0, 0, 0, 0,  //
                          0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0, 0, 0, 0));
  EXPECT_EQ(outcome.mean, (Floats{127.0F, -4.0F, 254.0F, 8.0F, 0.0F}));
  EXPECT_EQ(ranks.residual(0), (Floats{0.0F, 0.5F, 0.0F, 1.0F, 0.0F}));
}

TEST(Int4Codec, PutsTwoCodesInAByte) {
  SimulatedRanks ranks = ranks_of("int4(block=4)", 5);

  Outcome const outcome = ranks.step(0, {{7.0F, -7.0F, 1.0F, -1.0F, 14.0F}});

  EXPECT_THAT(bytes_of(outcome.bodies[0][0]),
              ElementsAre(0x97, 0xf1, 0x07, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0x40));
  EXPECT_EQ(outcome.mean, (Floats{7.0F, -7.0F, 1.0F, -1.0F, 14.0F}));
}

TEST(SignCodec, SendsThePlaneOfZerosOnlyIfThereAreZeros) {
  SimulatedRanks ranks = ranks_of("sign(block=8)", 9);

  Outcome const without = ranks.step(0, {{1, -3, 1, -3, 1, -3, 1, -3, -5}});
  ranks.set_residual(0, Floats(9, 0.0F));
  Outcome const with = ranks.step(1, {{1, -3, 0, 0, 0, 0, 0, 0, 0}});

  EXPECT_THAT(bytes_of(without.bodies[0][0]),
              ElementsAre(0, 0, 0, 0, 0xaa, 0x01, 0, 0, 0, 0, 0, 0x40, 0, 0, 0xa0, 0x40));
  EXPECT_EQ(without.mean, (Floats{2, -2, 2, -2, 2, -2, 2, -2, -5}));
  EXPECT_THAT(bytes_of(with.bodies[0][0]),
              ElementsAre(1, 0, 0, 0, 0x02, 0x00, 0xfc, 0x01, 0, 0, 0, 0x40, 0, 0, 0, 0));
  EXPECT_EQ(with.mean, (Floats{2, -2, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(SignCodec, C22FeedbackIsApplied) {
  SimulatedRanks ranks = ranks_of("sign ; feedback=residual", 3);
  Floats const gradient = {1.0F, -0.1F, 0.1F};

  Floats const first = ranks.step(0, {gradient}).mean;
  EXPECT_THAT(first,
              ElementsAre(FloatNear(0.4F, 1e-6F), FloatNear(-0.4F, 1e-6F), FloatNear(0.4F, 1e-6F)));
  EXPECT_THAT(ranks.residual(0),
              ElementsAre(FloatNear(0.6F, 1e-6F), FloatNear(0.3F, 1e-6F), FloatNear(-0.3F, 1e-6F)));

  Floats const second = ranks.step(1, {gradient}).mean;
  EXPECT_THAT(second, ElementsAre(FloatNear(2.0F / 3, 1e-6F), FloatNear(2.0F / 3, 1e-6F),
                                  FloatNear(-2.0F / 3, 1e-6F)));
  EXPECT_THAT(ranks.residual(0),
              ElementsAre(FloatNear(0.93333F, 1e-5F), FloatNear(-0.46667F, 1e-5F),
                          FloatNear(0.46667F, 1e-5F)));
}

TEST(SignCodec, C24AnElementWithoutGradientNeverMoves) {
  SimulatedRanks ranks = ranks_of("sign ; feedback=residual", 4, 2);
  ShapeNoise const noise(24);
  std::vector<double> sent(3, 0.0);

  for (std::uint64_t step = 0; step < 100; ++step) {
    std::vector<Floats> gradients;
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      auto const draw = [&](std::uint64_t i) {
        return 1.0F + 0.1F * static_cast<float>(noise.gaussian(8 * step + 4 * rank + i));
      };
      gradients.push_back({draw(0), -draw(1), draw(2), 0.0F});
    }
    Outcome const outcome = ranks.step(step, gradients);

    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    ASSERT_EQ(std::bit_cast<std::uint32_t>(outcome.mean[3]), 0U) << "step " << step;
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(ranks.residual(rank)[3]), 0U) << "step " << step;
    }
    for (std::size_t i = 0; i < 3; ++i) sent[i] += double{outcome.mean[i]};
  }
  // 100 steps of mean 1, less a residual of a few; the noise is 0.1·sqrt(100 / 2) at one sigma.
  EXPECT_THAT(sent, ElementsAre(DoubleNear(100, 6), DoubleNear(-100, 6), DoubleNear(100, 6)));
}

class QuantizerTest : public ::testing::TestWithParam<std::string> {};

TEST_P(QuantizerTest, C11AZeroBlockStaysZeroAndLeavesItsNeighboursAlone) {
  Floats const noise = make_gradient(Shape::gaussian, 192, 11);
  Floats gradient = noise;
  std::fill(gradient.begin() + 64, gradient.begin() + 128, 0.0F);
  SimulatedRanks with_zeros = ranks_of(GetParam() + "(block=64) ; feedback=residual", 192);
  SimulatedRanks without = ranks_of(GetParam() + "(block=64) ; feedback=residual", 192);

  Floats const decoded = with_zeros.step(0, {gradient}).mean;
  Floats const expected = without.step(0, {noise}).mean;

  for (std::size_t i = 0; i < 192; ++i) {
    bool const in_zero_block = i >= 64 && i < 128;
    ASSERT_EQ(decoded[i], in_zero_block ? 0.0F : expected[i]) << "element " << i;
    if (in_zero_block) {
      ASSERT_EQ(with_zeros.residual(0)[i], 0.0F) << "element " << i;
    }
  }
}

TEST_P(QuantizerTest, C12AConstantBlockDecodesToItsConstant) {
  for (float const constant : {0.01F, -3e4F}) {
    SimulatedRanks ranks = ranks_of(GetParam() + "(block=64) ; feedback=residual", 64);

    Floats const decoded = ranks.step(0, {Floats(64, constant)}).mean;

    float const ulp = std::fabs(std::nextafter(constant, 2 * constant) - constant);
    for (std::size_t i = 0; i < 64; ++i) {
      ASSERT_NEAR(decoded[i], constant, ulp) << "element " << i;
      ASSERT_LE(std::fabs(ranks.residual(0)[i]), ulp) << "element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizerTest, ::testing::Values("int8", "int4", "sign"),
                         [](auto const& param) { return param.param; });

TEST(Int8Codec, C15TensorsAreRoundedIndependently) {
  constexpr std::size_t kCount = 1'000'000;
  Floats gradient(kCount, 0.3F);
  // One 127 in each block makes the scale 1, so that 0.3 becomes 0 or 1.
  for (std::size_t i = 0; i < kCount; i += 4096) gradient[i] = 127.0F;
  std::string const spec = "int8(block=4096, rounding=stochastic)";
  SimulatedRanks a = ranks_of(spec, kCount, 1, "a");
  SimulatedRanks b = ranks_of(spec, kCount, 1, "b");

  Floats const decoded_a = a.step(0, {gradient}).mean;
  Floats const decoded_b = b.step(0, {gradient}).mean;

  double sum_a = 0;
  double sum_b = 0;
  double same = 0;
  double counted = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    if (i % 4096 == 0) continue;
    sum_a += decoded_a[i];
    sum_b += decoded_b[i];
    same += decoded_a[i] == decoded_b[i] ? 1 : 0;
    counted += 1;
  }
  EXPECT_NEAR(sum_a / counted, 0.3, 0.0023);
  EXPECT_NEAR(sum_b / counted, 0.3, 0.0023);
  EXPECT_NEAR(same / counted, 0.58, 0.0025);
}

TEST(BlockQuantizers, C17ErrorGrowsSmoothlyWithTheBlock) {
  constexpr std::size_t kCount = 1'000'000;
  Floats const gradient = make_gradient(Shape::gaussian, kCount, 17);
  for (std::string const name : {"int8", "int4"}) {
    double last = 0;
    for (int block = 64; block <= 4096; block *= 2) {
      SimulatedRanks ranks = ranks_of(name + "(block=" + std::to_string(block) + ")", kCount);
      ASSERT_TRUE(ranks.step(0, {gradient}).status.ok());
      double squares = 0;
      for (float const e : ranks.residual(0)) squares += double{e} * double{e};
      double const error = std::sqrt(squares / kCount);
      if (last > 0) {
        EXPECT_LE(error / last, 1.15) << name << ", block " << block;
      }
      last = error;
    }
  }
}

TEST(Rounding, DiffersBetweenTheOwnersSecondPassAndTheFirst) {
  Chain const chain = make_chain("int8(block=256, rounding=stochastic)");
  TensorInfo const piece = whole_tensor("w", 256);
  Floats values(256, 0.3F);
  values[0] = 127.0F;
  struct Sink final : MassSink {
    std::vector<float> rest = std::vector<float>(256);
    std::span<float> undelivered(TensorInfo const&) noexcept override { return rest; }
  } sink;
  ByteVector first(chain.compressor->round(0, piece).capacity_bytes);
  ByteVector second(first.size());
  std::uint64_t num_bytes = 0;
  Workspace workspace;
  StepWords words;
  ExecContext const ctx{.workspace = &workspace, .words = &words};

  ASSERT_TRUE(
      chain.compressor
          ->encode(ctx, 0, piece, std::span<float const>(values), {}, Body(first, &num_bytes))
          .ok());
  ASSERT_TRUE(
      chain.compressor->encode_owned(ctx, 0, piece, values, {}, Body(second, &num_bytes), sink)
          .ok());

  EXPECT_NE(first, second);
  Floats decoded(256, 0.0F);
  ASSERT_TRUE(
      chain.compressor
          ->decode_add(ctx, 0, piece, second, 1.0, {}, TensorView(std::span<float>(decoded)))
          .ok());
  for (std::size_t i = 0; i < 256; ++i) EXPECT_EQ(values[i] - decoded[i], sink.rest[i]);
}

}  // namespace
}  // namespace gradsieve::testing
