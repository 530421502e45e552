// SPDX-License-Identifier: Apache-2.0
// Sparsifiers on data that a person can check, and the faults that others have had.
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/gradient_shapes.hpp"
#include "tests/support/simulated_ranks.hpp"

namespace gradsieve::testing {
namespace {

using ::testing::ElementsAre;

SimulatedRanks ranks_of(std::string const& spec, std::size_t count, int world_size = 1) {
  return {make_chain(spec), whole_tensor("w", count), {.world_size = world_size}};
}

std::vector<std::size_t> places_of(Floats const& values) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != 0.0F) places.push_back(i);
  }
  return places;
}

std::uint64_t count_in(ByteVector const& sparse_body) {
  return wire::load<std::uint64_t>(sparse_body.data());
}

TEST(Topk, C31SendsWhatHasGrownLargest) {
  SimulatedRanks ranks = ranks_of("topk(density=0.25) ; feedback=residual", 4);
  std::vector<Floats> sent;

  for (std::uint64_t step = 0; step < 4; ++step) {
    sent.push_back(ranks.step(step, {{1, 2, 3, 4}}).mean);
  }

  EXPECT_THAT(sent, ElementsAre(Floats{0, 0, 0, 4}, Floats{0, 0, 6, 0}, Floats{0, 0, 0, 8},
                                Floats{0, 8, 0, 0}));
}

TEST(Topk, C01WhatIsNotFiniteIsNotChosen) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  SimulatedRanks ranks = ranks_of("topk(density=0.34) ; feedback=residual", 6);

  Outcome const outcome = ranks.step(0, {{std::nanf(""), kInf, kInf, 3, kInf, -7}});

  EXPECT_EQ(outcome.mean, (Floats{0, 0, 0, 3, 0, -7}));
  EXPECT_EQ(outcome.flags[0], kStepNonFinite);
  EXPECT_EQ(ranks.residual(0), Floats(6, 0.0F));
}

TEST(Topk, C02TiesGoToTheLowestIndex) {
  constexpr std::size_t kCount = 65536;
  Floats gradient(kCount);
  for (std::size_t i = 0; i < kCount; ++i) gradient[i] = i % 2 == 0 ? 0.25F : -0.25F;
  gradient[100] = 1;
  gradient[5000] = -1;
  gradient[60000] = 1;
  SimulatedRanks ranks = ranks_of("topk(density=0.0001068)", kCount);

  Outcome const outcome = ranks.step(0, {gradient});

  EXPECT_THAT(places_of(outcome.mean), ElementsAre(0, 1, 2, 3, 100, 5000, 60000));
}

TEST(Topk, C03BothZerosAreOneTie) {
  SimulatedRanks ranks = ranks_of("topk(density=0.67) | none | index(bitmap)", 6);

  Outcome const outcome = ranks.step(0, {{-0.0F, 0.0F, -0.0F, 5, 0.0F, -0.0F}});

  ByteVector const& body = outcome.bodies[0][0];
  EXPECT_EQ(count_in(body), 4U);
  EXPECT_EQ(body.back(), std::byte{0x0f});
  EXPECT_EQ(outcome.mean, (Floats{0, 0, 0, 5, 0, 0}));
}

TEST(Topk, C04TheCountFollowsFromTheDensityAlone) {
  for (std::string const rounds : {"0.1", "0.14", "0.01"}) {
    SimulatedRanks ranks = ranks_of("topk(density=" + rounds + ")", 10);
    EXPECT_EQ(count_in(ranks.step(0, {Floats(10, 1.0F)}).bodies[0][0]), 1U) << rounds;
  }
  SimulatedRanks half_up = ranks_of("topk(density=0.25)", 10);
  EXPECT_EQ(count_in(half_up.step(0, {Floats(10, 1.0F)}).bodies[0][0]), 3U);
  SimulatedRanks all = ranks_of("topk(density=1)", 10);
  EXPECT_EQ(count_in(all.step(0, {Floats(10, 1.0F)}).bodies[0][0]), 10U);
  for (std::string const density : {"0", "-0.1", "1.1", "nan", "inf"}) {
    EXPECT_THROW(static_cast<void>(make_chain("topk(density=" + density + ")")), Error) << density;
  }
}

TEST(Topk, C05TheIndexWidthFollowsFromTheTensor) {
  for (std::size_t const count : {std::size_t{40000}, std::size_t{70000}}) {
    Chain const chain = make_chain("topk(density=0.00005)");
    TensorInfo const piece = whole_tensor("w", count, DType::f16);
    std::vector<Float16> gradient(count);
    std::uint64_t const k = chain.compressor->round(0, piece).capacity_bytes > 0 ? 2 : 0;
    gradient[count - 1] = {0x4880};  // 9
    gradient[32768] = {0x4800};      // 8
    gradient[5] = {0x3c00};          // 1
    std::vector<float> residual(count);
    std::vector<float> decoded(count);
    ByteVector memory(chain.compressor->round(0, piece).capacity_bytes);
    ByteVector scratch(chain.compressor->workspace_bytes(piece));
    Workspace workspace{Bytes(scratch)};
    StepWords words;
    ExecContext const ctx{.workspace = &workspace, .words = &words};
    std::uint64_t num_bytes = 0;

    Status const encoded =
        chain.compressor->encode_with_residual(ctx, 0, piece, std::span<Float16 const>(gradient),
                                               {.out = residual}, {}, Body(memory, &num_bytes));
    ASSERT_TRUE(encoded.ok()) << encoded.message();
    Status const status =
        chain.compressor->decode_add(ctx, 0, piece, ConstBytes(memory).first(num_bytes), 1.0, {},
                                     TensorView(std::span<float>(decoded)));

    ASSERT_TRUE(status.ok()) << status.message();
    if (count == 70000) {  // k = 4 takes the 1 and a zero as well
      EXPECT_THAT(places_of(decoded), ElementsAre(5, 32768, count - 1));
    } else {
      EXPECT_EQ(k, 2U);
      EXPECT_THAT(places_of(decoded), ElementsAre(32768, count - 1));
    }
    EXPECT_EQ(decoded[count - 1], 9.0F);
    EXPECT_EQ(decoded[32768], 8.0F);
  }
}

TEST(Topk, C25ARampKeepsTheResidual) {
  constexpr std::size_t kCount = 4096;
  SimulatedRanks ranks = ranks_of(
      "topk(density=0.00390625, warmup_steps=3, warmup_density=0.25) ; feedback=residual", kCount);
  std::uint64_t const expected_counts[] = {1024, 256, 64, 16, 16};

  for (std::uint64_t step = 0; step < 5; ++step) {
    Floats const gradient = make_gradient(Shape::gaussian, kCount, 25 + step);
    Floats const before = ranks.residual(0);
    Outcome const outcome = ranks.step(step, {gradient});
    Floats const after = ranks.residual(0);

    EXPECT_EQ(count_in(outcome.bodies[0][0]), expected_counts[step]);
    for (std::size_t i = 0; i < kCount; ++i) {
      float const corrected = gradient[i] + before[i];
      bool const is_sent = after[i] == 0.0F;
      ASSERT_EQ(is_sent ? outcome.mean[i] : after[i], corrected) << "element " << i;
    }
  }
}

TEST(Threshold, C10WaitsUntilItIsReached) {
  SimulatedRanks ranks = ranks_of("threshold(value=0.5, max_density=1) ; feedback=residual", 1000);
  double sent = 0;

  for (std::uint64_t step = 0; step < 30; ++step) {
    Floats const mean = ranks.step(step, {Floats(1000, 0.2F)}).mean;
    sent += mean[999];
    if (step % 3 == 2) {
      EXPECT_NEAR(mean[999], 0.6, 1e-6);
      EXPECT_EQ(ranks.residual(0), Floats(1000, 0.0F));
    } else {
      EXPECT_EQ(mean, Floats(1000, 0.0F)) << "step " << step;
    }
  }
  EXPECT_NEAR(sent, 6.0, 1e-5);
}

TEST(Threshold, C07APieceBeyondTheLimitIsRefusedBeforeAnythingIsTouched) {
  Chain const chain = make_chain("threshold(value=0.5) ; feedback=residual");
  TensorInfo const piece = whole_tensor("w", kMaxPieceElements + 1);
  Workspace workspace;
  StepWords words;
  std::uint64_t num_bytes = 77;
  ExecContext const ctx{.workspace = &workspace, .words = &words};

  Status const status = chain.compressor->encode_with_residual(
      ctx, 0, piece, ConstTensorView(nullptr, piece.num_elements, DType::f32), {}, {},
      Body({}, &num_bytes));

  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_NE(std::string(status.message()).find("kMaxPieceElements"), std::string::npos);
  EXPECT_EQ(num_bytes, 77U);
}

TEST(Threshold, C10EqualityTravels) {
  SimulatedRanks ranks = ranks_of("threshold(value=0.5, max_density=1) ; feedback=residual", 3);

  EXPECT_EQ(ranks.step(0, {Floats(3, 0.25F)}).mean, Floats(3, 0.0F));
  EXPECT_EQ(ranks.step(1, {Floats(3, 0.25F)}).mean, Floats(3, 0.5F));
}

TEST(Threshold, WhatOverflowsStaysAndIsCounted) {
  SimulatedRanks ranks = ranks_of("threshold(value=1, max_density=0.5) ; feedback=residual", 6);

  Outcome const outcome = ranks.step(0, {{2, 0, 3, 4, 5, 0}});

  EXPECT_EQ(outcome.mean, (Floats{2, 0, 3, 4, 0, 0}));
  EXPECT_EQ(ranks.residual(0), (Floats{0, 0, 0, 0, 5, 0}));
  EXPECT_EQ(outcome.flags[0], kStepOverflow);
}

TEST(Blocktopk, SendsWholeBlocksAndAShortLastOne) {
  SimulatedRanks l2 = ranks_of("blocktopk(density=0.5, block=2)", 7);
  SimulatedRanks linf = ranks_of("blocktopk(density=0.3, block=2, norm=linf)", 7);
  Floats const gradient = {3, 3, 0, 4, 1, 1, 3.5F};

  // Σ c²: 18, 16, 2, 12.25; max |c|: 3, 4, 1, 3.5.
  EXPECT_EQ(l2.step(0, {gradient}).mean, (Floats{3, 3, 0, 4, 0, 0, 0}));
  EXPECT_EQ(linf.step(0, {gradient}).mean, (Floats{0, 0, 0, 4, 0, 0, 0}));
  EXPECT_EQ(linf.step(1, {Floats{0, 0, 0, 0, 0, 0, 2}}).mean, (Floats{0, 0, 0, 0, 0, 0, 5.5F}));
}

TEST(Randomk, C09RanksAgreeWithoutExchangingIndices) {
  SimulatedRanks ranks = ranks_of("randomk(density=0.01)", 1000, 4);
  Floats const ones(1000, 1.0F);

  Outcome const first = ranks.step(0, {ones, ones, ones, ones});
  Outcome const second = ranks.step(1, {ones, ones, ones, ones});

  EXPECT_EQ(places_of(first.mean).size(), 10U);
  EXPECT_NE(places_of(first.mean), places_of(second.mean));
  for (ByteVector const& body : first.bodies[0]) EXPECT_EQ(body.size(), 10 * sizeof(float));
  // Each stratum holds 100 elements: without feedback the values are scaled by that.
  for (std::size_t const i : places_of(first.mean)) EXPECT_EQ(first.mean[i], 100.0F);
}

TEST(Randomk, C09EveryElementIsChosenEquallyOften) {
  SimulatedRanks ranks = ranks_of("randomk(density=0.01)", 1000);
  std::vector<int> chosen(1000, 0);

  for (std::uint64_t step = 0; step < 20000; ++step) {
    Floats const mean = ranks.step(step, {Floats(1000, 1.0F)}).mean;
    for (std::size_t const i : places_of(mean)) ++chosen[i];
    ranks.set_residual(0, Floats(1000, 0.0F));
  }

  for (std::size_t i = 0; i < 1000; ++i) ASSERT_NEAR(chosen[i] / 20000.0, 0.01, 0.0035) << i;
}

TEST(Randomk, WithFeedbackNothingIsScaled) {
  SimulatedRanks ranks = ranks_of("randomk(density=0.25) ; feedback=residual", 8);

  Floats const mean = ranks.step(0, {Floats(8, 3.0F)}).mean;

  EXPECT_EQ(std::accumulate(mean.begin(), mean.end(), 0.0F), 6.0F);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(mean[i] + ranks.residual(0)[i], 3.0F);
}

TEST(Randomk, AHeldSetChangesAtMultiplesOfHold) {
  SimulatedRanks ranks = ranks_of("randomk(density=0.1, hold=4)", 500);
  std::map<std::uint64_t, std::vector<std::size_t>> sets;

  for (std::uint64_t step = 0; step < 12; ++step) {
    sets[step] = places_of(ranks.step(step, {Floats(500, 1.0F)}).mean);
    ranks.set_residual(0, Floats(500, 0.0F));
  }

  for (std::uint64_t step = 0; step < 12; ++step) EXPECT_EQ(sets[step], sets[step / 4 * 4]) << step;
  EXPECT_NE(sets[0], sets[4]);
  EXPECT_NE(sets[4], sets[8]);
}

// --- a leader's set ------------------------------------------------------------------------------

TEST(Cltk, TheLeaderGoesRound) {
  SimulatedRanks ranks = ranks_of("cltk(density=0.25) ; feedback=residual", 4, 2);

  Outcome const first = ranks.step(0, {{9, 0, 0, 1}, {0, 0, 8, 1}});
  Outcome const second = ranks.step(1, {{0, 1, 0, 0}, {0, 0, 1, 0}});

  EXPECT_EQ(first.mean, (Floats{4.5F, 0, 0, 0}));
  EXPECT_EQ(second.mean, (Floats{0, 0, 4.5F, 0}));
  EXPECT_EQ(ranks.residual(0), (Floats{0, 1, 0, 1}));
  EXPECT_EQ(ranks.residual(1), (Floats{0, 0, 0, 1}));
  EXPECT_TRUE(first.bodies[0][1].empty());
  EXPECT_TRUE(second.bodies[0][0].empty());
  EXPECT_EQ(first.bodies[1][0].size(), sizeof(float));
}

TEST(Cltk, AKeptSetCostsAFlag) {
  SimulatedRanks ranks = ranks_of("cltk(density=0.25, hold=3) ; feedback=residual", 8, 2);

  // The first step need not be one at which a new set is due: none is held yet.
  for (std::uint64_t step = 7; step < 13; ++step) {
    Floats const falling = {8, 7, 6, 5, 4, 3, 2, 1};
    Floats const rising = {1, 2, 3, 4, 5, 6, 7, 8};
    Outcome const outcome = ranks.step(step, {falling, rising});

    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    auto const leader = static_cast<std::size_t>(step / 3 % 2);
    bool const is_new = step == 7 || step % 3 == 0;
    EXPECT_EQ(outcome.bodies[0][leader].size() == 8, !is_new) << "step " << step;
    EXPECT_TRUE(outcome.bodies[0][1 - leader].empty());
  }
}

TEST(Cltk, AStepThatFailedLeavesNoSetBehind) {
  Chain const chain = make_chain("cltk(density=0.5, hold=10)");
  TensorInfo const piece = whole_tensor("w", 4);
  TestSlots slots(*chain.compressor, piece);
  ByteVector scratch(chain.compressor->workspace_bytes(piece));
  Workspace workspace{Bytes(scratch)};
  StepWords words;
  ExecContext const ctx{.workspace = &workspace, .words = &words};
  Floats const gradient = {4, 3, 2, 1};
  ByteVector memory(chain.compressor->round(0, piece).capacity_bytes);
  auto const agree = [&](std::uint64_t step) {
    words.step = step;
    std::uint64_t num_bytes = 0;
    EXPECT_TRUE(chain.compressor
                    ->encode(ctx, 0, piece, std::span<float const>(gradient), slots.view(),
                             Body(memory, &num_bytes))
                    .ok());
    ConstBytes const received[] = {ConstBytes(memory).first(num_bytes)};
    EXPECT_TRUE(chain.compressor->absorb(ctx, 0, piece, received, slots.view()).ok());
    return num_bytes;
  };

  EXPECT_GT(agree(0), 8U);
  slots.roll_back();
  EXPECT_GT(agree(1), 8U);
  slots.commit();
  EXPECT_EQ(agree(2), 8U);
}

TEST(Hold, IsRefusedWhereEachRankChooses) {
  for (std::string const spec : {"topk(hold=2)", "threshold(hold=2)", "blocktopk(hold=2)"}) {
    try {
      static_cast<void>(make_chain(spec));
      FAIL() << spec;
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("cltk and randomk"));
    }
  }
}

}  // namespace
}  // namespace gradsieve::testing
