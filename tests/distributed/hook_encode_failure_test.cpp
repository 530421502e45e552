// SPDX-License-Identifier: Apache-2.0
// An encoder that fails in the middle of a letter: what the pieces before it had taken comes back,
// what the pieces behind it would have taken is put aside (promises 3 and 4).
#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

constexpr int kWorldSize = 3;
constexpr int kBadRank = 1;
constexpr std::uint64_t kBadStep = 3;

/// The third of five tensors, or the shard of it that a letter holds.
bool is_bad(ExecContext const& ctx, TensorInfo const& piece) {
  return ctx.rank == kBadRank && ctx.words->step == kBadStep && piece.id == tensor_id("t2");
}

/// The upper half of every float; fails where is_bad says so, its work done.
class FailingCodec final : public Compressor {
 public:
  Claims claims() const noexcept override { return {.fixed_rate = true, .elementwise = true}; }
  RoundInfo round(int, TensorInfo const& piece) const noexcept override {
    return {.capacity_bytes = 2 * static_cast<std::size_t>(piece.num_elements)};
  }

 private:
  Status do_encode(ExecContext const& ctx, int, TensorInfo const& piece,
                   std::span<float const> corrected, StateView, Body body) const noexcept override {
    Bytes const out = body.resize(2 * corrected.size());
    for (std::size_t i = 0; i < corrected.size(); ++i) {
      auto const bits = std::bit_cast<std::uint32_t>(corrected[i]);
      wire::store(out.data() + 2 * i, static_cast<std::uint16_t>(bits >> 16));
    }
    return is_bad(ctx, piece) ? Status{Code::internal, "failing: as asked for"} : Status{};
  }
  Status do_decode_add(ExecContext const&, int, TensorInfo const&, ConstBytes body, float weight,
                       StateView, std::span<float> accumulator) const noexcept override {
    for (std::size_t i = 0; i < accumulator.size(); ++i) {
      std::uint32_t const upper = wire::load<std::uint16_t>(body.data() + 2 * i);
      accumulator[i] += weight * std::bit_cast<float>(upper << 16);
    }
    return {};
  }
};

/// Stores the bytes as they are; fails in the third of five calls in that step.
class FailingBytes final : public ByteCodec {
 public:
  std::size_t bound(std::size_t num_bytes) const noexcept override { return num_bytes; }
  std::size_t workspace_bytes(std::size_t) const noexcept override { return 0; }
  Status encode(ExecContext const& ctx, ConstBytes input, Body output) const noexcept override {
    Bytes const out = output.resize(input.size());
    std::ranges::copy(input, out.begin());
    bool const is_third = ctx.rank == kBadRank && ctx.words->step == kBadStep && num_calls_++ == 2;
    return is_third ? Status{Code::internal, "failing: as asked for"} : Status{};
  }
  Status decode(ExecContext const&, ConstBytes input, Bytes output,
                std::size_t& num_bytes) const noexcept override {
    std::ranges::copy(input, output.begin());
    num_bytes = input.size();
    return {};
  }

 private:
  mutable int num_calls_ = 0;  // of the bad rank in the bad step, which one thread makes
};

Registry registry_that_fails() {
  Registry registry;
  register_builtin_plugins(registry);
  registry.add(
      {.name = "failing", .payload_id = 200, .summary = "fails", .paper = "-"},
      Registry::CompressorFactory([](Params const&) { return std::make_unique<FailingCodec>(); }));
  registry.add(
      {.name = "failing_bytes",
       .kind = PluginKind::byte_codec,
       .payload_id = 201,
       .summary = "fails",
       .paper = "-"},
      Registry::ByteCodecFactory([](Params const&) { return std::make_unique<FailingBytes>(); }));
  return registry;
}

class HookEncodeFailure : public ::testing::TestWithParam<char const*> {
 protected:
  static Layout layout() { return all_in_one(one_bucket_each({300, 1, 700, 64, 200})); }
  [[nodiscard]] static HookOptions options(Registry const& registry, Rollback rollback) {
    HookOptions options = options_for("none");
    options.rules[0].spec = GetParam();
    options.rollback = rollback;
    options.registry = &registry;
    return options;
  }
};

TEST_P(HookEncodeFailure, LosesNothingAndCountsNothingTwiceUnderMerge) {
  bool const is_bf16 = std::string_view(GetParam()).find("dtype=bf16") != std::string_view::npos;
  // Two roundings of f32 from (c − ĉ) + ĉ, one of the sum c; or one step of a stored bf16.
  double const relative = is_bf16 ? 0x1p-7 : 3 * 0x1p-24;
  test::run_ranks(kWorldSize, [&](Transport& transport) {
    Registry const registry = registry_that_fails();
    HookRank rank(transport, options(registry, Rollback::merge), layout());
    for (std::uint64_t step = 0; step < kBadStep; ++step) rank.step(step, heavy_tailed_of, 4.0F);
    auto const before = rank.all_residuals();

    HookRank::Attempt const attempt = rank.attempt(kBadStep, heavy_tailed_of, 16.0F);

    EXPECT_FALSE(attempt.result.committed);
    EXPECT_EQ(rank.hook().failure().rank, kBadRank);
    if (transport.rank() == kBadRank) {
      EXPECT_EQ(attempt.reduced.code(), Code::internal);
      EXPECT_EQ(rank.hook().failure().message, "failing: as asked for");
    }
    rank.after_begin = [&] {
      auto const after = rank.all_residuals();
      for (std::size_t t = 0; t < after.size(); ++t) {
        std::string const name = "t" + std::to_string(t);
        auto const given = heavy_tailed_of(transport.rank(), kBadStep, name, after[t].size());
        for (std::size_t i = 0; i < after[t].size(); ++i) {
          double const expected = double{before[t][i]} + double{given[i]};
          double const mass = std::fabs(double{before[t][i]}) + std::fabs(double{given[i]});
          ASSERT_NEAR(after[t][i], expected, relative * mass) << name << ", element " << i;
        }
      }
    };
    for (std::uint64_t step = kBadStep + 1; step < 8; ++step) rank.step(step);
  });
}

TEST_P(HookEncodeFailure, LeavesStateBitForBitUnderExact) {
  test::run_ranks(kWorldSize, [&](Transport& transport) {
    Registry const registry = registry_that_fails();
    HookRank rank(transport, options(registry, Rollback::exact), layout());
    for (std::uint64_t step = 0; step < kBadStep; ++step) rank.step(step);
    auto const before = rank.all_residuals();

    HookRank::Attempt const attempt = rank.attempt(kBadStep, heavy_tailed_of);

    EXPECT_FALSE(attempt.result.committed);
    rank.after_begin = [&] { EXPECT_EQ(rank.all_residuals(), before); };
    for (std::uint64_t step = kBadStep + 1; step < 8; ++step) rank.step(step);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Specs, HookEncodeFailure,
    ::testing::Values("failing ; feedback=residual ; exchange=gather",
                      "failing ; feedback=residual ; exchange=two_shot",
                      "failing ; feedback=residual(dtype=bf16) ; exchange=gather",
                      "topk(density=0.1) | failing ; feedback=residual",
                      "randomk(density=0.1) | failing ; feedback=residual",
                      "cltk(density=0.1) | failing ; feedback=residual",
                      "topk(density=0.1) | int8 | failing_bytes ; feedback=residual",
                      "bf16 | failing_bytes ; feedback=residual"),
    [](auto const& c) {
      std::string name;
      for (char const letter : std::string(c.param)) {
        if (std::isalnum(static_cast<unsigned char>(letter)) != 0) name += letter;
      }
      return name;
    });

}  // namespace
}  // namespace gradsieve::testing
