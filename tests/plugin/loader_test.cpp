// SPDX-License-Identifier: Apache-2.0
// What load_plugin takes and refuses, and a plug-in in the hook.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradsieve/hook.hpp"

#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

using ::testing::HasSubstr;

std::string path_of(std::string const& name) { return PLUGIN_DIR + name + ".so"; }

/// The error that loading gives; the registry stays as it was.
Error refusal(std::string const& path) {
  Registry registry = builtin_registry();
  try {
    load_plugin(registry, path);
  } catch (Error const& error) {
    EXPECT_EQ(registry.plugins().size(), builtin_registry().plugins().size());
    return error;
  }
  ADD_FAILURE() << path << " was loaded";
  return {Code::ok, ""};
}

void expect_refused(std::string const& name, Code code, std::string const& part) {
  Error const error = refusal(path_of(name));
  EXPECT_EQ(error.code(), code) << error.what();
  EXPECT_THAT(error.what(), HasSubstr(part));
}

TEST(LoadPluginTest, RefusesWhatItCannotRun) {
  expect_refused("plugin_abi_2", Code::unsupported, "version 2 of the interface; expected 1");
  expect_refused("plugin_short", Code::unsupported, "struct_size is 64");
  expect_refused("plugin_uses_more", Code::unsupported, "uses what this host does not have");
  expect_refused("plugin_uses_cuda", Code::unsupported, "uses CUDA");
}

// A claim is known only once its parameters are.
TEST(LoadPluginTest, RefusesAClaimThatNoPlugInCanKeep) {
  Registry registry = builtin_registry();
  std::string const name = load_plugin(registry, path_of("plugin_claims_cuda"));
  try {
    static_cast<void>(make_chain(name, registry));
    ADD_FAILURE() << "made a chain of a plug-in that claims cuda";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), Code::unsupported);
    EXPECT_THAT(error.what(), HasSubstr("claims cuda"));
  }
}

TEST(LoadPluginTest, RefusesAWrongDeclaration) {
  expect_refused("plugin_taken_id", Code::invalid_usage, "payload id is 2; expected 32");
  expect_refused("plugin_taken_name", Code::invalid_usage, "the name is taken");
  expect_refused("plugin_no_decode", Code::invalid_usage, "lacks a function");
}

TEST(LoadPluginTest, RefusesWhatIsNoPlugIn) {
  expect_refused("not_there", Code::io_error, "not_there.so");
  Error const library = refusal("/lib/x86_64-linux-gnu/libc.so.6");
  EXPECT_TRUE(library.code() == Code::unsupported || library.code() == Code::io_error);
  // A bare name is a file here, never something that the system's loader looks for.
  EXPECT_EQ(refusal("libc.so.6").code(), Code::io_error);
}

TEST(LoadPluginTest, APlugInThatCannotBeMadeIsAnErrorOfTheSpec) {
  Registry registry = builtin_registry();
  load_plugin(registry, path_of("plugin_no_create"));

  try {
    static_cast<void>(make_chain("broken", registry));
    FAIL() << "it was made";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), Code::out_of_memory);
    EXPECT_THAT(error.what(), HasSubstr("'broken'"));
  }
}

TEST(LoadPluginTest, ANumberThatIsNoResultIsAnErrorOfThePlugIn) {
  Registry registry = builtin_registry();
  load_plugin(registry, path_of("plugin_odd_create"));

  try {
    static_cast<void>(make_chain("broken", registry));
    FAIL() << "it was made";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), Code::internal);
    EXPECT_THAT(error.what(), HasSubstr("'broken'"));
  }
}

TEST(LoadPluginTest, ABodyLongerThanItsRoundIsAnErrorOfThePlugIn) {
  Registry registry = builtin_registry();
  load_plugin(registry, path_of("plugin_too_long"));
  test::run_ranks(2, [&](Transport& transport) {
    HookOptions options = options_for("broken");
    options.registry = &registry;
    HookRank rank(transport, options, one_bucket_each({10}));

    HookRank::Attempt const attempt = rank.attempt(0, heavy_tailed_of);

    EXPECT_FALSE(attempt.result.committed);
    EXPECT_FALSE(attempt.result.status.ok());
  });
}

TEST(LoadPluginTest, TheBuiltInRegistryIsClosedOnceItWasSeen) {
  static_cast<void>(builtin_registry());
  try {
    load_builtin_plugin(path_of("full_use"));
    FAIL() << "it was added";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), Code::invalid_usage);
  }
}

// Its second encoding leaves a rest with the owner: nothing is lost on the way.
TEST(PluginHookTest, ShardSumAndMassSinkConserveTheGradient) {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kElements = 1001;
  constexpr std::uint64_t kSteps = 8;
  Registry registry = builtin_registry();
  ASSERT_EQ(load_plugin(registry, path_of("full_use")), "full_use");
  std::vector<std::vector<float>> last(kRanks);
  std::vector<double> error(kElements, 0.0);  // given - sent - kept, over all ranks
  std::vector<double> size(kElements, 0.0);
  std::mutex mutex;
  test::run_ranks(kRanks, [&](Transport& transport) {
    HookOptions options = options_for("full_use ; feedback=residual ; exchange=two_shot");
    options.registry = &registry;
    HookRank rank(transport, options, one_bucket_each({kElements}));
    std::vector<double> own(kElements, 0.0);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      std::vector<float> const gradient = heavy_tailed_of(rank.rank(), step, "t0", kElements);
      rank.step(step);
      for (std::size_t i = 0; i < kElements; ++i) {
        own[i] += static_cast<double>(gradient[i]) - static_cast<double>(rank.bucket(0)[i]);
      }
    }
    std::vector<float> const residual = rank.hook().residual("t0");
    EXPECT_EQ(rank.hook().bucket_stats()[0].exchange, "two_shot");
    std::lock_guard const lock(mutex);
    last[static_cast<std::size_t>(rank.rank())] = rank.bucket(0);
    for (std::size_t i = 0; i < kElements; ++i) {
      error[i] += own[i] - static_cast<double>(residual[i]);
      size[i] += std::abs(own[i]) + std::abs(static_cast<double>(residual[i])) + 1.0;
    }
  });

  EXPECT_EQ(bits_of(last[0]), bits_of(last[1]));
  EXPECT_EQ(bits_of(last[0]), bits_of(last[2]));
  // Per step and rank a handful of f32 roundings of numbers no larger than what was met.
  for (std::size_t i = 0; i < kElements; ++i)
    ASSERT_LE(std::abs(error[i]), 8 * kSteps * 0x1p-24 * size[i]) << "element " << i;
}

TEST(PluginHookTest, SendsF64AsItIs) {
  Registry registry = builtin_registry();
  load_plugin(registry, path_of("full_use"));
  test::run_ranks(2, [&](Transport& transport) {
    HookOptions options = options_for("full_use ; exchange=gather");
    options.registry = &registry;
    Hook hook(transport, options);
    hook.plan(std::vector<TensorDesc>{{.name = "w", .num_elements = 3, .dtype = DType::f64}},
              std::vector<BucketDesc>{{{"w"}}});
    double const own = transport.rank() == 0 ? 1e-300 : 3e-300;
    std::vector<double> gradient = {own, 1.0 + 0x1p-50, -own};
    Event event;
    ASSERT_TRUE(hook.begin(0).ok());
    ASSERT_TRUE(hook.reduce(0, TensorView(std::span<double>(gradient)), event).ok());
    ASSERT_TRUE(hook.finish().committed);

    EXPECT_EQ(gradient, (std::vector<double>{0.5e-300 + 1.5e-300, 1.0 + 0x1p-50, -2e-300}));
  });
}

}  // namespace
}  // namespace gradsieve::testing
