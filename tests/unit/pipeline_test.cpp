// SPDX-License-Identifier: Apache-2.0
// A chain as a whole: what travels, what it costs, what comes back.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/gradient_shapes.hpp"
#include "tests/support/simulated_ranks.hpp"

namespace gradsieve::testing {
namespace {

SimulatedRanks ranks_of(std::string const& spec, std::size_t count, int world_size = 1) {
  return {make_chain(spec), whole_tensor("w", count), {.world_size = world_size}};
}

TEST(Pipeline, WritesTheSparseBodyAsTheWireFormatHasIt) {
  SimulatedRanks ranks = ranks_of("topk(density=0.2) | none | index(bitmap)", 10);

  ByteVector const body = ranks.step(0, {{0, 1, 0, 0, 0, 0, 0, 0, 0, -2}}).bodies[0][0];

  ASSERT_EQ(body.size(), 50U);
  EXPECT_EQ(wire::load<std::uint64_t>(body.data()), 2U);       // indices
  EXPECT_EQ(wire::load<std::uint64_t>(body.data() + 8), 8U);   // value bytes
  EXPECT_EQ(wire::load<std::uint64_t>(body.data() + 16), 2U);  // index bytes
  EXPECT_EQ(wire::load<std::uint32_t>(body.data() + 24), 1U);  // bitmap
  EXPECT_EQ(wire::load<float>(body.data() + 32), 1.0F);
  EXPECT_EQ(wire::load<float>(body.data() + 36), -2.0F);
  EXPECT_EQ(wire::load<std::uint16_t>(body.data() + 48), 0x0202);
}

TEST(Pipeline, C83EveryByteIsCounted) {
  constexpr std::size_t kCount = 1'000'000;
  SimulatedRanks ranks = ranks_of("topk(density=0.01) | int8(block=65536)", kCount);

  ByteVector const body =
      ranks.step(0, {make_gradient(Shape::heavy_tailed, kCount, 83)}).bodies[0][0];

  // 10000 values, one scale, and Elias-Fano with six low bits: 7500 bytes, and one bit per index
  // and per 64 elements. Header and section starts included.
  std::size_t const values = 32 + 10000 + 4;
  std::size_t const indices = 7500 + (10000 + kCount / 64 + 7) / 8;
  std::size_t const expected = (values + 15) / 16 * 16 + indices;
  EXPECT_EQ(body.size(), expected);
  double const payload = static_cast<double>(wire::kHeaderBytes + body.size());
  EXPECT_NEAR(4.0 * kCount / payload, 192.2, 0.1);
}

TEST(Pipeline, KeepsWhatTheValueCodecLoses) {
  SimulatedRanks ranks = ranks_of("topk(density=0.5) | int8(block=4) ; feedback=residual", 4);

  Outcome const outcome = ranks.step(0, {{127.0F, 0.25F, 3.5F, -0.5F}});

  EXPECT_EQ(outcome.mean, (Floats{127, 0, 4, 0}));
  EXPECT_EQ(ranks.residual(0), (Floats{0, 0.25F, -0.5F, -0.5F}));
}

TEST(Pipeline, ASharedSetWithPlainValuesTravelsInASum) {
  TensorInfo const piece = whole_tensor("w", 100);
  auto const last_round = [&](char const* spec) {
    Chain const chain = make_chain(spec);
    return chain.compressor->round(chain.compressor->num_rounds() - 1, piece);
  };

  EXPECT_EQ(last_round("randomk(density=0.1)").exchange, ExchangeKind::sum);
  EXPECT_EQ(last_round("randomk(density=0.1)").sum_type, SumType::f32);
  EXPECT_EQ(last_round("randomk(density=0.1)").capacity_bytes, 40U);
  EXPECT_EQ(last_round("cltk(density=0.1)").exchange, ExchangeKind::sum);
  EXPECT_EQ(last_round("randomk(density=0.1) | int8").exchange, ExchangeKind::gather);
  EXPECT_EQ(last_round("randomk(density=0.1) | zstd").exchange, ExchangeKind::gather);
  EXPECT_EQ(last_round("topk(density=0.1)").exchange, ExchangeKind::gather);
}

TEST(Pipeline, SharedSetsWithCodedValuesCarryNoIndices) {
  SimulatedRanks ranks = ranks_of("randomk(density=0.5) | int8(block=4) ; feedback=residual", 8, 2);
  Floats const a = {1, 2, 3, 4, 5, 6, 7, 8};
  Floats const b = {-8, -7, -6, -5, -4, -3, -2, -1};

  Outcome const outcome = ranks.step(5, {a, b});

  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  ByteVector const& body = outcome.bodies[0][0];
  EXPECT_EQ(wire::load<std::uint64_t>(body.data()), 4U);
  EXPECT_EQ(wire::load<std::uint64_t>(body.data() + 16), 0U);
  EXPECT_EQ(wire::load<std::uint32_t>(body.data() + 24), 0U);
  EXPECT_EQ(body.size(), 32U + 4 + 4);
  for (std::size_t i = 0; i < 8; ++i) {
    float const kept = 0.5F * (ranks.residual(0)[i] + ranks.residual(1)[i]);
    EXPECT_NEAR(outcome.mean[i] + kept, 0.5F * (a[i] + b[i]), 1e-6F) << "element " << i;
  }
}

TEST(Pipeline, TheSumFollowsTheRamp) {
  Chain const chain = make_chain("randomk(density=0.1, warmup_steps=2, warmup_density=1)");
  TensorInfo const piece = whole_tensor("w", 1000);

  EXPECT_EQ(chain.compressor->round(0, piece).capacity_bytes, 4000U);
  EXPECT_EQ(chain.compressor->sum_bytes(0, piece, 0), 4000U);
  EXPECT_EQ(chain.compressor->sum_bytes(0, piece, 1), 4U * 316);
  EXPECT_EQ(chain.compressor->sum_bytes(0, piece, 2), 400U);
  EXPECT_EQ(chain.compressor->settled_bytes(0, piece), 400U);
}

TEST(Pipeline, WithoutFeedbackTheResidualIsWhatWasDropped) {
  SimulatedRanks ranks = ranks_of("randomk(density=0.25)", 4);

  Floats const mean = ranks.step(0, {{1, 2, 3, 4}}).mean;

  Floats const given = {1, 2, 3, 4};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(ranks.residual(0)[i], given[i] - mean[i]);
    EXPECT_TRUE(mean[i] == 0.0F || mean[i] == 4 * given[i]);
  }
}

TEST(Zstd, StoresWhatItCannotShrinkAndShrinksWhatItCan) {
  SimulatedRanks noise = ranks_of("none | zstd", 9);
  SimulatedRanks constant = ranks_of("none | zstd", 10000);

  Outcome const stored = noise.step(0, {make_gradient(Shape::gaussian, 9, 1)});
  Outcome const framed = constant.step(0, {Floats(10000, 0.5F)});

  EXPECT_EQ(stored.bodies[0][0].size(), 16U + 36);
  EXPECT_EQ(wire::load<std::uint32_t>(stored.bodies[0][0].data()), 0U);
  EXPECT_EQ(stored.mean, make_gradient(Shape::gaussian, 9, 1));
  EXPECT_LT(framed.bodies[0][0].size(), 100U);
  EXPECT_EQ(wire::load<std::uint32_t>(framed.bodies[0][0].data()), 1U);
  EXPECT_EQ(framed.mean, Floats(10000, 0.5F));
}

TEST(Zstd, HasRoomForEveryLevelAndSize) {
  for (int level : {1, 5, 12, 19}) {
    for (std::size_t const count : {1UL, 4000UL, 5000UL, 40000UL, 70000UL, 300000UL}) {
      SimulatedRanks ranks = ranks_of("sign | zstd(" + std::to_string(level) + ")", count);
      Outcome const outcome = ranks.step(0, {make_gradient(Shape::sparse, count, 5)});
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
      if (count > 1) {
        EXPECT_EQ(wire::load<std::uint32_t>(outcome.bodies[0][0].data()), 1U)
            << "level " << level << ", " << count << " elements: no frame was made";
      }
    }
  }
}

TEST(Compressor, ChecksItsArguments) {
  Chain const chain = make_chain("int8");
  TensorInfo const piece = whole_tensor("w", 8);
  Floats gradient(8, 1.0F);
  Floats residual(8);
  alignas(16) std::byte memory[64];
  std::uint64_t num_bytes = 0;
  Workspace workspace;
  StepWords words;
  ExecContext const ctx{.workspace = &workspace, .words = &words};
  std::span<float const> const input = gradient;
  auto const encode = [&](int round, std::span<float const> from, std::span<float> to, Bytes room) {
    return chain.compressor
        ->encode_with_residual(ctx, round, piece, from, {.out = to}, {}, Body(room, &num_bytes))
        .code();
  };

  EXPECT_EQ(encode(0, input, residual, memory), Code::ok);
  EXPECT_EQ(num_bytes, 12U);
  EXPECT_EQ(encode(1, input, residual, memory), Code::invalid_argument);
  EXPECT_EQ(encode(0, input.first(7), residual, memory), Code::invalid_argument);
  EXPECT_EQ(encode(0, input, std::span(residual).first(7), memory), Code::invalid_argument);
  EXPECT_EQ(encode(0, input, residual, Bytes(memory).subspan(1)), Code::invalid_argument);
  EXPECT_EQ(encode(0, input, residual, Bytes(memory).first(11)), Code::capacity_exceeded);
  EXPECT_EQ(num_bytes, 0U) << "a failed body is empty";
}

}  // namespace
}  // namespace gradsieve::testing
