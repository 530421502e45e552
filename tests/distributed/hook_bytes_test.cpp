// SPDX-License-Identifier: Apache-2.0
// Promise 9 and cases C-82 to C-87: what is configured is what runs, and bytes are counted where
// they are handed to the transport.
#include <chrono>
#include <cmath>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include "gradsieve/exchange.hpp"

#include "tests/support/hook_rank.hpp"
#include "tests/support/plugin_specs.hpp"
#include "tests/support/rank_runner.hpp"
#include "tests/support/test_transports.hpp"

namespace gradsieve::testing {
namespace {

class HookBytes : public ::testing::TestWithParam<SpecCase> {};

TEST_P(HookBytes, ReportedBytesAreThoseHandedToTheTransport) {
  for (int const world_size : {1, 2, 4}) {
    test::run_ranks(world_size, [&](Transport& inner) {
      CountingTransport transport(inner);
      HookRank rank(transport, options_for(GetParam().spec), one_bucket_each({3000, 40}));
      for (std::uint64_t step = 0; step < 6; ++step) {
        std::uint64_t const before = transport.bytes(Channel::data);
        rank.step(step);
        std::uint64_t reported = 0;
        for (Stats const& stats : rank.hook().bucket_stats()) reported += stats.wire_bytes;
        EXPECT_EQ(reported, transport.bytes(Channel::data) - before) << "step " << step;
      }
      std::uint64_t total = 0;
      std::uint64_t of_tensors = 0;
      for (Stats const& stats : rank.hook().bucket_stats()) total += stats.total_wire_bytes;
      for (Stats const& stats : rank.hook().tensor_stats()) of_tensors += stats.total_wire_bytes;
      EXPECT_EQ(of_tensors, total) << "tensors and buckets tell the same";
      if (world_size == 1) {
        EXPECT_EQ(total, 0u) << "case C-85: one rank has nobody to talk to";
        EXPECT_EQ(rank.hook().bucket_stats()[0].exchange, "none");
      }
    });
  }
}
INSTANTIATE_TEST_SUITE_P(Registry, HookBytes, ::testing::ValuesIn(default_specs()),
                         [](auto const& c) { return c.param.name; });

TEST(Ratio, RatioC82SendsDenseWhenPairsWouldBeLarger) {
  for (std::size_t const num_nonzero : {499u, 500u, 501u, 600u}) {
    test::run_ranks(2, [&](Transport& inner) {
      CountingTransport transport(inner);
      std::vector<std::uint64_t> indices;
      std::vector<float> values;
      for (std::size_t i = 0; i < num_nonzero; ++i) {
        indices.push_back(i + static_cast<std::size_t>(transport.rank()));
        values.push_back(static_cast<float>(1000 * transport.rank()) + static_cast<float>(i));
      }
      SparseResult result;
      Status const status = sparse_all_reduce(
          transport, {.num_elements = 1000, .indices = indices, .values = values}, 0.5F, result);

      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(result.dense, num_nonzero > 500)
          << num_nonzero << " pairs of 8 bytes against 4000 bytes";
      std::vector<float> dense(1000, 0.0F);
      for (std::size_t i = 0; i < result.indices.size(); ++i)
        dense[result.indices[i]] = result.values[i];
      for (std::size_t i = 0; i < 1000; ++i) {
        float const zero = i < num_nonzero ? static_cast<float>(i) : 0.0F;
        float const one = i >= 1 && i <= num_nonzero ? 1000.0F + static_cast<float>(i - 1) : 0.0F;
        ASSERT_EQ(dense[i], 0.5F * zero + 0.5F * one) << "element " << i;
      }
    });
  }
}

TEST(Ratio, RatioC83CountsValuesIndicesScalesAndHeaders) {
  constexpr std::uint64_t kCount = 1'000'000;
  constexpr std::uint64_t kKept = 10'000;
  // docs/wire_format.md: header, sparse header, int8 codes and scales, then Elias-Fano with 6 low
  // bits.
  std::uint64_t const values = kKept + 4 * ((kKept + 255) / 256);
  std::uint64_t const low = kKept * 6 / 8;
  std::uint64_t const high = (kKept + ((kCount - 1) >> 6) + 1 + 7) / 8;
  std::uint64_t const expected = 64 + (32 + values + 15) / 16 * 16 + low + high;
  test::run_ranks(2, [&](Transport& transport) {
    HookRank rank(
        transport,
        options_for("topk(density=0.01) | int8(block=256) ; feedback=residual ; exchange=gather"),
        one_bucket_each({kCount}));
    for (std::uint64_t step = 0; step < 2; ++step) rank.step(step);
    Stats const stats = rank.hook().tensor_stats()[0];
    EXPECT_EQ(stats.dense_bytes, 4 * kCount);
    EXPECT_EQ(stats.kept_elements, kKept);
    EXPECT_EQ(stats.wire_bytes, expected);
    double const ratio =
        static_cast<double>(stats.dense_bytes) / static_cast<double>(stats.wire_bytes);
    EXPECT_GT(ratio, 80.0);
    EXPECT_LT(ratio, 400.0) << "400 would be the values alone";
  });
}

TEST_P(HookBytes, StrictModeFindsNothingWrong) {
  for (int const world_size : {1, 2, 5}) {
    test::run_ranks(world_size, [&](Transport& transport) {
      HookOptions options = options_for(GetParam().spec);
      options.strict = true;
      Layout const layout = one_bucket_each({3000, 40});
      try {
        Hook(transport, options).plan(layout.tensors, layout.buckets);
      } catch (Error const& error) {  // on all ranks: here compression would lose
        ASSERT_NE(std::string(error.what()).find("stand aside"), std::string::npos);
        return;
      }
      HookRank rank(transport, options, layout);
      for (std::uint64_t step = 0; step < 4; ++step) rank.step(step);
    });
  }
}

TEST(Ratio, RatioC84HalvesTravelAsHalves) {
  constexpr std::uint64_t kCount = 1'000'000;
  for (char const* spec : {"fp16", "fp16 ; exchange=gather", "fp16 ; exchange=two_shot", "bf16"}) {
    SCOPED_TRACE(spec);
    test::run_ranks(2, [&](Transport& inner) {
      CountingTransport transport(inner);
      HookRank rank(transport, options_for(spec), one_bucket_each({kCount}));
      std::uint64_t const before = transport.bytes(Channel::data);
      rank.step(0);
      std::uint64_t const sent = transport.bytes(Channel::data) - before;
      EXPECT_GE(sent, 2 * kCount);
      EXPECT_LE(sent, 2 * kCount + 256) << "headers, not another type";
      EXPECT_TRUE(rank.hook().tensor_stats()[0].spec.starts_with(std::string(spec).substr(0, 4)));
    });
  }
}

TEST(Ratio, RatioC85OneRankListsItsTimesAndNoExchange) {
  test::run_ranks(1, [](Transport& transport) {
    HookRank rank(transport, options_for("topk(density=0.01) | int8 ; feedback=residual"),
                  one_bucket_each({200'000}));
    for (std::uint64_t step = 0; step < 6; ++step) rank.step(step);
    Stats const stats = rank.hook().bucket_stats()[0];
    EXPECT_EQ(stats.exchange, "none");
    EXPECT_EQ(stats.total_wire_bytes, 0u);
    EXPECT_GT(stats.total_encode_seconds, 0.0);
    EXPECT_GT(stats.total_decode_seconds, 0.0);
  });
}

constexpr std::chrono::milliseconds kNap{20};

/// Sends nothing and takes its time over it.
class SleepingCodec final : public Compressor {
 public:
  Claims claims() const noexcept override { return {}; }
  RoundInfo round(int, TensorInfo const&) const noexcept override { return {.capacity_bytes = 1}; }

 private:
  Status do_encode(ExecContext const&, int, TensorInfo const&, std::span<float const>, StateView,
                   Body body) const noexcept override {
    std::this_thread::sleep_for(kNap);
    static_cast<void>(body.resize(0));
    return {};
  }
  Status do_decode_add(ExecContext const&, int, TensorInfo const&, ConstBytes, float, StateView,
                       std::span<float>) const noexcept override {
    std::this_thread::sleep_for(kNap);
    return {};
  }
};

// The clock on the wall goes on while a thread waits or others have its core; its own does not.
TEST(Ratio, CpuTimeIsTheThreadsOwn) {
  Registry registry;
  register_builtin_plugins(registry);
  registry.add(
      {.name = "sleeping", .payload_id = 200, .summary = "sleeps", .paper = "-"},
      Registry::CompressorFactory([](Params const&) { return std::make_unique<SleepingCodec>(); }));
  test::run_ranks(2, [&](Transport& transport) {
    HookOptions options = options_for("sleeping");
    options.registry = &registry;
    HookRank rank(transport, options, one_bucket_each({1000}));
    for (std::uint64_t step = 0; step < 2; ++step) rank.step(step);
    Stats const stats = rank.hook().bucket_stats()[0];
    double const nap = std::chrono::duration<double>(kNap).count();
    EXPECT_GE(stats.encode_seconds, nap);
    EXPECT_GE(stats.decode_seconds, 2 * nap);  // a payload of each rank
    EXPECT_GT(stats.encode_cpu_seconds, 0.0);
    EXPECT_GT(stats.decode_cpu_seconds, 0.0);
    EXPECT_LT(stats.encode_cpu_seconds, stats.encode_seconds);
    EXPECT_LT(stats.decode_cpu_seconds, stats.decode_seconds);
    EXPECT_GT(stats.total_encode_cpu_seconds, stats.encode_cpu_seconds);
    EXPECT_GT(stats.total_decode_cpu_seconds, stats.decode_cpu_seconds);
  });
}

// Promise 8: where pairs of all ranks would take more bytes than a dense sum, auto sends dense and
// says why. Per rank and element, four ranks: a gather sends 3·(4·density + 1/8) bytes, a dense sum
// 2·3/4·4 = 6: they meet at a density of 0.47.
TEST(StandAside, AutoSendsDenseWhereCompressionWouldLose) {
  for (char const* density : {"0.01", "0.44", "0.5", "0.9"}) {
    bool const loses = std::string(density) >= "0.5";
    SCOPED_TRACE(density);
    test::run_ranks(4, [&](Transport& inner) {
      CountingTransport transport(inner);
      std::string const spec = "topk(density=" + std::string(density) + ") ; feedback=residual";
      HookRank rank(transport, options_for(spec), one_bucket_each({20000}));
      HookRank forced(transport, options_for(spec + " ; exchange=gather"),
                      one_bucket_each({20000}));
      for (std::uint64_t step = 0; step < 6; ++step) {
        std::uint64_t const before = transport.bytes(Channel::data);
        rank.step(step);
        EXPECT_LE(transport.bytes(Channel::data) - before, 20000 * 6 + 1024u);
        forced.step(step);
      }
      Stats const stats = rank.hook().tensor_stats()[0];
      EXPECT_EQ(stats.spec.starts_with("none"), loses) << stats.spec;
      EXPECT_EQ(stats.exchange, loses ? "all_reduce" : "gather");
      EXPECT_TRUE(forced.hook().tensor_stats()[0].spec.starts_with("topk"));
      std::ostringstream text;
      rank.hook().describe(text);
      EXPECT_EQ(text.str().find("dense sum") != std::string::npos, loses) << text.str();
      if (!loses) return;

      float dense = 0.0F;  // the sum of an all_reduce, in rank order, then the weight
      for (int r = 0; r < 4; ++r) dense += heavy_tailed_of(r, 5, "t0", 20000)[123];
      EXPECT_EQ(rank.bucket(0)[123], 0.25F * dense);
      for (float const x : rank.hook().residual("t0")) ASSERT_EQ(x, 0.0F);
    });
  }
}

TEST(StandAside, StrictModeRefusesInsteadAtPlanTime) {
  test::run_ranks(4, [](Transport& transport) {
    HookOptions options = options_for("topk(density=0.9) ; feedback=residual");
    options.strict = true;
    Layout const layout = one_bucket_each({20000});
    Hook hook(transport, options);
    EXPECT_THROW(hook.plan(layout.tensors, layout.buckets), Error);
  });
}

/// Says that it was handed a byte more a message.
class MiscountingTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  [[nodiscard]] TransportCounters counters() const noexcept override {
    TransportCounters counters = inner_.counters();
    counters.bytes_sent += counters.messages_sent;
    return counters;
  }
};

TEST(Testing, TestingC86StrictModeFailsAStepWhoseBytesAreOthers) {
  for (char const* spec : {"topk(density=0.01) | int8 ; feedback=residual",
                           "int8 ; feedback=residual", "randomk(density=0.1)", "none"}) {
    for (bool const is_strict : {false, true}) {
      SCOPED_TRACE(spec);
      test::run_ranks(3, [&](Transport& inner) {
        MiscountingTransport miscounting(inner);
        bool const is_odd = inner.rank() == 1;
        Transport& transport = is_odd ? static_cast<Transport&>(miscounting) : inner;
        HookOptions options = options_for(spec);
        options.strict = is_strict;
        HookRank rank(transport, options, one_bucket_each({1000}));
        StepResult const result = rank.attempt(0, heavy_tailed_of).result;
        EXPECT_EQ(result.committed, !is_strict);
        if (is_strict) {
          EXPECT_EQ(rank.hook().failure().rank, 1);
        }
        if (is_strict && is_odd) {
          EXPECT_EQ(rank.hook().failure().field, "bytes");
        }
      });
    }
  }
}

TEST(Testing, TestingC86AMissingBackendIsAnErrorAtPlanTime) {
  test::run_ranks(2, [](Transport& transport) {
    HookOptions options = options_for("topk(density=0.01) ; feedback=residual");
    options.backend = Backend::cuda;
    Layout const layout = one_bucket_each({100});
    try {
      Hook hook(transport, options);
      hook.plan(layout.tensors, layout.buckets);
      GTEST_SKIP() << "there is a CUDA device";
    } catch (Error const& error) {
      // A build without CUDA, or a machine without a device.
      EXPECT_TRUE(error.code() == Code::not_built || error.code() == Code::device_error);
      EXPECT_NE(std::string(error.what()).find("CUDA"), std::string::npos) << error.what();
    }
  });
}

TEST(Testing, TestingC86StatsTellTheAlgorithmThatRanAndItsBytes) {
  test::run_ranks(2, [](Transport& transport) {
    HookOptions options =
        options_for("topk(density=0.01) | int8 ; feedback=residual ; dense_below=100");
    options.rules.insert(options.rules.begin(), {.match = "*.bias", .spec = "none"});
    options.strict = true;
    Layout layout;
    layout.tensors = {{.name = "fc.weight", .num_elements = 40000},
                      {.name = "fc.bias", .num_elements = 400},
                      {.name = "norm.weight", .num_elements = 64}};
    for (TensorDesc const& tensor : layout.tensors) layout.buckets.push_back({{tensor.name}});
    HookRank rank(transport, options, layout);
    for (std::uint64_t step = 0; step < 6; ++step) rank.step(step);

    std::vector<Stats> const stats = rank.hook().tensor_stats();
    EXPECT_TRUE(stats[0].spec.starts_with("topk")) << stats[0].spec;
    EXPECT_LT(10 * stats[0].wire_bytes, stats[0].dense_bytes) << "asked to compress, and it does";
    EXPECT_TRUE(stats[1].spec.starts_with("none")) << "a rule: " << stats[1].spec;
    EXPECT_TRUE(stats[2].spec.starts_with("none")) << "below the size: " << stats[2].spec;
    for (std::size_t i = 1; i < 3; ++i) {
      std::vector<float> const a = heavy_tailed_of(0, 5, stats[i].name, stats[i].num_elements);
      std::vector<float> const b = heavy_tailed_of(1, 5, stats[i].name, stats[i].num_elements);
      std::vector<float> const mean = rank.result_of(stats[i].name);
      for (std::size_t e = 0; e < mean.size(); ++e) ASSERT_EQ(mean[e], 0.5F * a[e] + 0.5F * b[e]);
    }
    std::ostringstream text;
    rank.hook().describe(text);
    for (char const* word : {"fc.weight", "topk", "int8", "gather"}) {
      EXPECT_NE(text.str().find(word), std::string::npos) << word << " in:\n" << text.str();
    }
  });
}

// Values are unique per rank and index, so that no swap can hide: a transport that mixes up two
// elements or two ranks has to be seen by the very check that the dense tests make.
TEST(Testing, TestingC87ASwapInTheTransportIsSeen) {
  auto const unique = [](int rank, std::uint64_t, std::string const&, std::uint64_t count) {
    std::vector<float> gradient(count);
    for (std::size_t i = 0; i < count; ++i)
      gradient[i] = static_cast<float>(1000 * rank) + static_cast<float>(i);
    return gradient;
  };
  auto const swap_two_elements = [](Bytes bytes) {
    // Among the values of each of the three: behind the header and the section sizes.
    if (bytes.size() < 128) return;
    std::swap_ranges(bytes.begin() + 112, bytes.begin() + 116, bytes.begin() + 116);
  };
  for (char const* spec : {"none ; exchange=gather", "none ; exchange=all_reduce",
                           "topk(density=1) ; exchange=gather"}) {
    SCOPED_TRACE(spec);
    for (bool const armed : {false, true}) {
      test::run_ranks(2, [&](Transport& inner) {
        MutatedTransport transport(inner, swap_two_elements);
        HookRank rank(transport, options_for(spec), one_bucket_each({64}));
        transport.arm(armed);
        HookRank::Attempt const attempt = rank.attempt(0, unique);
        transport.arm(false);
        bool is_right = attempt.result.committed;
        for (std::size_t i = 0; i < 64; ++i)
          is_right = is_right && rank.bucket(0)[i] == 500.0F + static_cast<float>(i);
        EXPECT_EQ(is_right, !armed) << "rank " << transport.rank();
      });
    }
  }
}

}  // namespace
}  // namespace gradsieve::testing
