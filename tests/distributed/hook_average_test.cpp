// SPDX-License-Identifier: Apache-2.0
// Cases C-28 to C-33: what the mean is, whatever travels and in whatever type.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/hook_rank.hpp"
#include "tests/support/plugin_specs.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

std::uint16_t to_bf16(float x) {
  auto const bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

/// Exact for the numbers of these tests: normal halves without a remainder.
std::uint16_t to_f16(float x) {
  if (x == 0.0F) return 0;
  auto const bits = std::bit_cast<std::uint32_t>(x);
  std::uint32_t const exponent = ((bits >> 23) & 0xffu) - 127 + 15;
  return static_cast<std::uint16_t>(((bits >> 16) & 0x8000u) | (exponent << 10) |
                                    ((bits >> 13) & 0x3ffu));
}
float from_f16(std::uint16_t half) {
  std::uint32_t const exponent = (half >> 10) & 0x1fu;
  if (exponent == 0)
    return std::ldexp(static_cast<float>(half & 0x3ffu), -24) *
           ((half & 0x8000u) != 0 ? -1.0F : 1.0F);
  return std::bit_cast<float>(((half & 0x8000u) << 16) | ((exponent - 15 + 127) << 23) |
                              ((half & 0x3ffu) << 13));
}

/// One tensor of n elements of a type, all ranks; returns rank 0's result, and checks that all
/// agree.
template <typename T, typename Of>
std::vector<T> reduce_once(int world_size, HookOptions const& options, std::size_t count,
                           Of const& value_of) {
  std::vector<std::vector<T>> results(static_cast<std::size_t>(world_size));
  test::run_ranks(world_size, [&](Transport& transport) {
    Layout const layout = one_bucket_each({count}, kDTypeOf<T>);
    Hook hook(transport, options);
    hook.plan(layout.tensors, layout.buckets);
    std::vector<T> gradient(count);
    for (std::size_t i = 0; i < count; ++i) gradient[i] = value_of(transport.rank(), i);
    ASSERT_TRUE(hook.begin(0).ok());
    Event event;
    Status const reduced = hook.reduce(0, TensorView(std::span<T>(gradient)), event);
    ASSERT_TRUE(reduced.ok()) << reduced.message();
    Status const waited = hook.wait(event);
    ASSERT_TRUE(waited.ok()) << waited.message();
    ASSERT_TRUE(hook.finish().committed);
    results[static_cast<std::size_t>(transport.rank())] = gradient;
  });
  for (auto const& result : results) {
    EXPECT_TRUE(
        std::ranges::equal(std::as_bytes(std::span(result)), std::as_bytes(std::span(results[0]))));
  }
  return results[0];
}

struct KeepAll {
  std::string name;
  std::string spec;
};
void PrintTo(KeepAll const& c, std::ostream* out) { *out << c.spec; }

class Average : public ::testing::TestWithParam<KeepAll> {};

TEST_P(Average, AvgC28MeanIsTakenOnceAndSumNotAtAll) {
  // Rank r brings r + 1 + index/4: exact in every type, and different everywhere.
  auto const value_of = [](int rank, std::size_t i) {
    return static_cast<float>(rank + 1) + 0.25F * static_cast<float>(i % 4);
  };
  constexpr std::size_t kCount = 500;
  for (double const predivide : {1.0, 4.0, 0.5}) {
    for (ReduceOp const op : {ReduceOp::mean, ReduceOp::sum}) {
      HookOptions options = options_for(GetParam().spec);
      options.op = op;
      options.predivide = predivide;

      auto const result = reduce_once<float>(4, options, kCount, value_of);

      // int8 and int4 scale by max/L: a value that is not a multiple of that moves by half a step
      // at most, and a two-shot rounds twice. 2.5 and 10 stand apart from 0.625, 2.5 and 40 by far
      // more.
      float const step = GetParam().name.starts_with("int8")   ? 4.75F / 127
                         : GetParam().name.starts_with("int4") ? 4.75F / 7
                                                               : 0.0F;
      float const ranks = op == ReduceOp::mean ? 1.0F : 4.0F;
      for (std::size_t i = 0; i < kCount; ++i) {
        float const expected = ranks * (2.5F + 0.25F * static_cast<float>(i % 4));
        ASSERT_NEAR(result[i], expected, ranks * step)
            << "element " << i << ", predivide " << predivide;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    Specs, Average,
    ::testing::Values(KeepAll{"none", "none"}, KeepAll{"none_gather", "none ; exchange=gather"},
                      KeepAll{"none_two_shot", "none ; exchange=two_shot"},
                      KeepAll{"none_all_reduce", "none ; exchange=all_reduce"},
                      KeepAll{"bf16", "bf16"}, KeepAll{"fp16", "fp16"},
                      KeepAll{"fp16_gather", "fp16 ; exchange=gather"}, KeepAll{"int8", "int8"},
                      KeepAll{"int4", "int4"}, KeepAll{"none_zstd", "none | zstd"},
                      KeepAll{"topk", "topk(density=1)"},
                      KeepAll{"topk_feedback", "topk(density=1) ; feedback=residual"},
                      KeepAll{"blocktopk", "blocktopk(density=1, block=8)"},
                      KeepAll{"randomk", "randomk(density=1)"}, KeepAll{"cltk", "cltk(density=1)"}),
    [](auto const& c) { return c.param.name; });

TEST(AverageOfSigns, AvgC28HoldsWhereAllMagnitudesAreEqual) {
  auto const value_of = [](int rank, std::size_t i) {
    return static_cast<float>(rank + 1) * (i % 3 == 0 ? -1.0F : 1.0F);
  };
  auto const result = reduce_once<float>(4, options_for("sign ; exchange=gather"), 300, value_of);
  for (std::size_t i = 0; i < 300; ++i)
    ASSERT_EQ(result[i], i % 3 == 0 ? -2.5F : 2.5F) << "element " << i;
}

TEST(AverageOfHalves, AvgC29Fp16SumDoesNotOverflow) {
  for (char const* spec :
       {"none", "fp16", "fp16 ; exchange=gather", "bf16", "topk(density=1)", "int8"}) {
    SCOPED_TRACE(spec);
    auto const result = reduce_once<Float16>(
        8, options_for(spec), 64, [](int, std::size_t) { return Float16{to_f16(12000.0F)}; });
    for (Float16 const x : result) {
      // bf16 holds 12032 for 12000; everything else is exact or within half a step of int8.
      ASSERT_NEAR(from_f16(x.bits), 12000.0F, std::string(spec) == "bf16" ? 32.0F : 0.0F);
    }
  }
}

TEST(AverageOfHalves, AvgC30SmallAddendsSurviveInEveryRankOrder) {
  for (int rotation = 0; rotation < 8; ++rotation) {
    auto const value_of = [=](int rank, std::size_t) {
      return BFloat16{to_bf16((rank + rotation) % 8 == 0 ? 256.0F : 1.0F)};
    };
    auto const wide_of = [=](int rank, std::size_t) {
      return (rank + rotation) % 8 == 0 ? 256.0F : 1.0F;
    };
    for (char const* spec :
         {"none", "bf16 ; exchange=gather", "bf16 ; exchange=two_shot", "topk(density=1) | bf16"}) {
      SCOPED_TRACE(std::string(spec) + ", rotation " + std::to_string(rotation));
      HookOptions options = options_for(spec);
      options.op = ReduceOp::sum;
      for (BFloat16 const x : reduce_once<BFloat16>(8, options, 40, value_of))
        ASSERT_EQ(from_bf16(x.bits), 264.0F);
      // In f32 the sum is exact, unless the owner of a two-shot sends it on in bf16.
      float const expected =
          std::string(spec).find("two_shot") != std::string::npos ? 264.0F : 263.0F;
      for (float const x : reduce_once<float>(8, options, 40, wide_of)) ASSERT_EQ(x, expected);
    }
  }
}

TEST(AverageOfOne, AvgC31OneRankGetsItsOwnGradient) {
  std::vector<float> const gradient = {1.0F, 2.0F, 3.0F, 4.0F};
  auto const given = [&](int, std::uint64_t, std::string const&, std::uint64_t) {
    return gradient;
  };
  test::run_ranks(1, [&](Transport& transport) {
    for (char const* spec :
         {"none", "topk(density=1)", "topk(density=1) ; feedback=residual", "randomk(density=1)"}) {
      HookRank all(transport, options_for(spec), one_bucket_each({4}));
      for (std::uint64_t step = 0; step < 6; ++step) {
        all.step(step, given);
        EXPECT_EQ(all.bucket(0), gradient) << spec;
      }
    }
    HookRank one(transport, options_for("topk(density=0.25) ; feedback=residual"),
                 one_bucket_each({4}));
    std::array<std::pair<std::size_t, float>, 4> const sent = {
        {{3, 4.0F}, {2, 6.0F}, {3, 8.0F}, {1, 8.0F}}};
    std::vector<float> total(4);
    for (std::uint64_t step = 0; step < 4; ++step) {
      one.step(step, given);
      std::vector<float> expected(4);
      expected[sent[step].first] = sent[step].second;
      EXPECT_EQ(one.bucket(0), expected) << "step " << step;
      std::vector<float> const kept = one.hook().residual("t0");
      for (std::size_t i = 0; i < 4; ++i) {
        total[i] += one.bucket(0)[i];
        EXPECT_EQ(total[i] + kept[i], gradient[i] * static_cast<float>(step + 1));
      }
    }
  });
}

TEST(AverageOfTwo, AvgC32Fp16OnTheWireGivesFloatsBack) {
  auto const value_of = [](int rank, std::size_t i) {
    return static_cast<float>(2 * rank) + static_cast<float>(i + 1);
  };
  for (char const* spec : {"fp16", "fp16 ; exchange=gather", "fp16 ; exchange=two_shot"}) {
    EXPECT_EQ(reduce_once<float>(2, options_for(spec), 2, value_of),
              (std::vector<float>{2.0F, 3.0F}))
        << spec;
  }
}

class AverageOfTypes : public ::testing::TestWithParam<SpecCase> {};

TEST_P(AverageOfTypes, AvgC33ResultHasTheTypeOfTheGradient) {
  // ±(1 … 4)/4, the same on both ranks, so that any chosen subset has a mean it came with.
  auto const value_of = [](int, std::size_t i) {
    return (i % 2 == 0 ? 0.25F : -0.25F) * static_cast<float>(i % 4 + 1);
  };
  auto const as_f16 = [&](int r, std::size_t i) { return Float16{to_f16(value_of(r, i))}; };
  auto const as_bf16 = [&](int r, std::size_t i) { return BFloat16{to_bf16(value_of(r, i))}; };
  HookOptions const options = options_for(GetParam().spec);

  auto const wide = reduce_once<float>(2, options, 7, value_of);
  auto const f16 = reduce_once<Float16>(2, options, 7, as_f16);
  auto const b16 = reduce_once<BFloat16>(2, options, 7, as_bf16);

  // The same numbers go in, so the f32 result comes out, rounded once to the type: half a unit of
  // 11 and of 8 bits.
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_NEAR(from_f16(f16[i].bits), wide[i], std::abs(wide[i]) * 0x1p-11F + 1e-7F)
        << "element " << i;
    EXPECT_NEAR(from_bf16(b16[i].bits), wide[i], std::abs(wide[i]) * 0x1p-8F) << "element " << i;
  }
}
INSTANTIATE_TEST_SUITE_P(Registry, AverageOfTypes, ::testing::ValuesIn(default_specs()),
                         [](auto const& c) { return c.param.name; });

TEST(AverageOfDoubles, AvgC33F64IsExactWithNoneAndRefusedWhereItCannotBe) {
  for (SpecCase const& spec_case : default_specs()) {
    SCOPED_TRACE(spec_case.spec);
    if (!spec_case.chain.compressor->claims().f64) {
      try {
        reduce_once<double>(2, options_for(spec_case.spec), 7,
                            [](int, std::size_t) { return 1.0; });
        ADD_FAILURE() << "took 64-bit gradients";
      } catch (std::exception const& error) {
        EXPECT_NE(std::string(error.what()).find("f64"), std::string::npos) << error.what();
      }
      continue;
    }
    auto const result =
        reduce_once<double>(2, options_for(spec_case.spec), 7, [](int rank, std::size_t i) {
          return static_cast<double>(rank + 1) / (3.0 + 4.0 * static_cast<double>(i));
        });
    for (std::size_t i = 0; i < 7; ++i) {
      double const base = 3.0 + 4.0 * static_cast<double>(i);
      EXPECT_EQ(result[i], 0.5 * (1.0 / base) + 0.5 * (2.0 / base)) << "element " << i;
    }
  }
}

}  // namespace
}  // namespace gradsieve::testing
