// SPDX-License-Identifier: Apache-2.0
// What the border of the C interface lets in, and what it says.
#include <cstring>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gradsieve/vocabulary.hpp"

#include "tests/bindings/c_ranks.hpp"

namespace gradsieve::testing {
namespace {

bool says(char const* part) {
  return std::string(gsvGetLastError()).find(part) != std::string::npos;
}

TEST(CErrorsTest, ResultsAreTheCodesOfCpp) {
  for (std::uint32_t number = 0; number < 128; ++number)
    EXPECT_EQ(gsvGetResultName(static_cast<gsvResult_t>(number)),
              code_name(static_cast<Code>(number)))
        << number;
  EXPECT_STREQ(gsvGetResultName(gsvForkedChild), "forked_child");
  EXPECT_STREQ(gsvGetResultName(gsvInternal), "internal");
  EXPECT_STREQ(gsvGetResultName(static_cast<gsvResult_t>(99)), "unknown");
}

TEST(CErrorsTest, NullIsAnErrorThatNamesTheParameter) {
  ContextPtr const context = make_context();
  EXPECT_EQ(gsvContextCreate(nullptr, nullptr), gsvInvalidArgument);
  EXPECT_TRUE(says("'context' is NULL")) << gsvGetLastError();
  EXPECT_EQ(gsvHookBegin(nullptr, 0, 1.0F), gsvInvalidArgument);
  EXPECT_TRUE(says("'hook' is NULL")) << gsvGetLastError();
  EXPECT_EQ(gsvSpecCanonical(nullptr, nullptr, 0, nullptr, context.get()), gsvInvalidArgument);
  EXPECT_TRUE(says("'spec' is NULL")) << gsvGetLastError();
  EXPECT_EQ(gsvCommInitTable(nullptr, nullptr), gsvInvalidArgument);
  EXPECT_EQ(gsvContextDestroy(nullptr), gsvSuccess);
  EXPECT_EQ(gsvCommDestroy(nullptr), gsvSuccess);
  EXPECT_EQ(gsvHookDestroy(nullptr), gsvSuccess);
  EXPECT_EQ(gsvSparseDestroy(nullptr), gsvSuccess);
}

TEST(CErrorsTest, TheMessageBelongsToTheThread) {
  ASSERT_EQ(gsvHookRefuse(nullptr), gsvInvalidArgument);
  std::string elsewhere = "?";
  std::thread([&] { elsewhere = gsvGetLastError(); }).join();

  EXPECT_EQ(elsewhere, "");
  EXPECT_TRUE(says("'hook' is NULL"));
}

// --- structs of other versions -------------------------------------------------------------------

TEST(CStructsTest, ASizeThatWasNeverSetIsRefused) {
  gsvContextConfig_t config = {};
  gsvContext_t context = nullptr;

  EXPECT_EQ(gsvContextCreate(&context, &config), gsvInvalidArgument);
  EXPECT_TRUE(says("the struct_size of 'config' is 0")) << gsvGetLastError();
  config.struct_size = 1u << 30;
  EXPECT_EQ(gsvContextCreate(&context, &config), gsvInvalidArgument);
}

TEST(CStructsTest, ANewerStructPassesUnlessItSetsWhatIsNotKnown) {
  struct Newer {
    gsvContextConfig_t known;
    std::uint64_t later;
  };
  Newer newer = {GSV_INIT(gsvContextConfig_t), 0};
  newer.known.struct_size = sizeof(Newer);
  gsvContext_t context = nullptr;

  ASSERT_GSV(gsvContextCreate(&context, &newer.known));
  gsvContextDestroy(context);
  newer.later = 1;
  EXPECT_EQ(gsvContextCreate(&context, &newer.known), gsvUnsupported);
}

TEST(CStructsTest, AnOlderStructIsReadAndWrittenInItsOwnSize) {
  ContextPtr const context = make_context();
  gsvSpecInfo_t info = GSV_INIT(gsvSpecInfo_t);
  info.struct_size = offsetof(gsvSpecInfo_t, num_rounds);
  info.num_rounds = 1234;

  ASSERT_GSV(gsvGetSpecInfo("int8", 10, gsvFloat32, &info, context.get()));

  EXPECT_NE(info.claims, 0U);
  EXPECT_EQ(info.num_rounds, 1234U);
}

TEST(CStructsTest, AnArrayHasTheStrideOfItsCaller) {
  struct Newer {
    gsvTensorDesc_t known;
    std::uint64_t later[3];
  };
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(1);
  HookPtr const hook = make_hook(comms[0].get(), context.get(), "none");
  Newer tensors[2] = {{GSV_INIT(gsvTensorDesc_t), {}}, {GSV_INIT(gsvTensorDesc_t), {}}};
  tensors[0].known.name = "a";
  tensors[1].known.name = "b";
  tensors[0].known.num_elements = 3;
  tensors[1].known.num_elements = 5;
  for (Newer& tensor : tensors) tensor.known.struct_size = sizeof(Newer);
  std::uint32_t const indices[] = {1, 0};
  gsvBucketDesc_t bucket = GSV_INIT(gsvBucketDesc_t);
  bucket.tensors = indices;
  bucket.num_tensors = 2;
  ASSERT_GSV(gsvHookPlan(hook.get(), &tensors[0].known, 2, &bucket, 1));

  struct NewerStats {
    gsvStats_t known;
    std::uint64_t later;
  };
  NewerStats stats[2] = {};
  stats[0].known.struct_size = sizeof(NewerStats);
  stats[0].later = 5;
  std::uint32_t count = 0;
  ASSERT_GSV(gsvHookGetStats(hook.get(), gsvStatsOfTensors, &stats[0].known, 2, &count));

  EXPECT_EQ(count, 2U);
  EXPECT_STREQ(stats[1].known.name, "b");
  EXPECT_EQ(stats[1].known.num_elements, 5U);
  EXPECT_EQ(stats[0].later, 0U);
}

TEST(CStructsTest, NumbersThatAreNoEnumeratorAreRefused) {
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(1);
  gsvRule_t rule = GSV_INIT(gsvRule_t);
  rule.spec = "none";
  gsvHookOptions_t options = GSV_INIT(gsvHookOptions_t);
  options.rules = &rule;
  options.num_rules = 1;
  options.rollback = 2;
  gsvHook_t hook = nullptr;

  EXPECT_EQ(gsvHookCreate(&hook, comms[0].get(), &options, context.get()), gsvInvalidArgument);
  EXPECT_TRUE(says("'rollback' is 2; expected 0 ... 1")) << gsvGetLastError();
  EXPECT_EQ(hook, nullptr);
}

TEST(CEnumsTest, NumbersThatAreNoEnumeratorAreRefusedByValueToo) {
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(1);
  HookPtr const hook = make_hook(comms[0].get(), context.get(), "none");
  ASSERT_GSV(plan_one(hook.get(), 1));
  gsvSpecInfo_t info = GSV_INIT(gsvSpecInfo_t);
  gsvEvent_t event = {};
  std::uint64_t num_bytes = 0;
  std::uint32_t count = 0;
  float value = 1.0F;
  std::byte payload[256];

  for (std::uint32_t const number : {5u, 8u, 1u << 31, ~0u}) {
    auto const dtype = any_number<gsvDtype_t>(number);
    auto const is_refused = [&](gsvResult_t result, std::string const& name) {
      EXPECT_EQ(result, gsvInvalidArgument) << name << " " << number;
      EXPECT_TRUE(
          says(("'" + name + "' is " + std::to_string(number) + "; expected 0 ...").c_str()))
          << gsvGetLastError();
    };
    is_refused(gsvGetSpecInfo("none", 1, dtype, &info, context.get()), "dtype");
    is_refused(gsvEncodeBound(1, dtype, "none", &num_bytes, context.get()), "dtype");
    is_refused(gsvEncode(&value, payload, sizeof payload, &num_bytes, 1, dtype, "none", nullptr,
                         nullptr, context.get(), nullptr),
               "dtype");
    is_refused(gsvDecode(payload, sizeof payload, &value, 1, dtype, "none", context.get(), nullptr),
               "dtype");
    is_refused(gsvHookReduce(hook.get(), 0, &value, 1, dtype, nullptr, &event), "dtype");
    is_refused(gsvHookGetStats(hook.get(), any_number<gsvStatsOf_t>(number), nullptr, 0, &count),
               "of");
    is_refused(
        gsvHookLoadState(hook.get(), nullptr, nullptr, 0, any_number<gsvOnWorldChange_t>(number)),
        "on_world_change");
    is_refused(gsvHookImportState(hook.get(), nullptr, 0, any_number<gsvOnWorldChange_t>(number)),
               "on_world_change");
    EXPECT_STREQ(gsvGetResultName(any_number<gsvResult_t>(number)), "unknown");
  }
}

// --- other ranks ---------------------------------------------------------------------------------

TEST(CFailureTest, NamesRankAndFieldThatDiffer) {
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(3);
  for_each_rank(3, [&](int rank) {
    HookPtr const hook =
        make_hook(comms[static_cast<std::size_t>(rank)].get(), context.get(), "topk(density=0.1)");
    EXPECT_EQ(plan_one(hook.get(), rank == 2 ? 99 : 100), gsvMismatch);
    EXPECT_TRUE(says("num_elements")) << gsvGetLastError();

    gsvFailure_t failure = GSV_INIT(gsvFailure_t);
    ASSERT_GSV(gsvHookGetFailure(hook.get(), &failure));
    EXPECT_EQ(failure.code, static_cast<std::uint32_t>(gsvMismatch));
    EXPECT_EQ(failure.rank, 2);
    EXPECT_STREQ(failure.tensor, "w");
    EXPECT_STREQ(failure.field, "num_elements");
  });
}

TEST(CFailureTest, ANonFiniteGradientRollsBackOnAllRanksAndFailsNobody) {
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(2);
  for_each_rank(2, [&](int rank) {
    HookPtr const hook =
        make_hook(comms[static_cast<std::size_t>(rank)].get(), context.get(), "int8");
    ASSERT_GSV(plan_one(hook.get(), 10));
    std::vector<float> gradient(10, 1.0F);
    if (rank == 1) gradient[4] = std::numeric_limits<float>::quiet_NaN();
    gsvStepResult_t outcome = GSV_INIT(gsvStepResult_t);

    EXPECT_GSV(step_one(hook.get(), 0, gradient, outcome));

    EXPECT_EQ(outcome.committed, 0U);
    EXPECT_EQ(outcome.found_nonfinite, 1U);
  });
}

TEST(CFailureTest, AnAbortedRankIsAnErrorOfTheOthersToo) {
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(2);
  gsvHookOptions_t options = GSV_INIT(gsvHookOptions_t);
  options.exchange_deadline_ms = 300;
  for_each_rank(2, [&](int rank) {
    gsvComm_t const comm = comms[static_cast<std::size_t>(rank)].get();
    HookPtr const hook = make_hook(comm, context.get(), "none", options);
    ASSERT_GSV(plan_one(hook.get(), 10));
    if (rank == 1) {
      EXPECT_GSV(gsvCommAbort(comm));
    }
    std::vector<float> gradient(10, 1.0F);
    gsvStepResult_t outcome = GSV_INIT(gsvStepResult_t);

    gsvResult_t const result = step_one(hook.get(), 0, gradient, outcome);

    EXPECT_EQ(result, rank == 1 ? gsvAborted : gsvTimeout) << gsvGetLastError();
    EXPECT_EQ(outcome.committed, 0U);
  });
}

TEST(CFailureTest, ARefusedStepGivesItsGradientBack) {
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(1);
  HookPtr const hook =
      make_hook(comms[0].get(), context.get(), "topk(density=0.1) ; feedback=residual");
  ASSERT_GSV(plan_one(hook.get(), 10));
  std::vector<float> gradient = {9, 1, 2, 3, 4, 5, 6, 7, 8, 0};
  std::vector<float> const submitted = gradient;
  gsvStepResult_t outcome = GSV_INIT(gsvStepResult_t);
  ASSERT_GSV(step_one(hook.get(), 0, gradient, outcome));
  ASSERT_EQ(outcome.committed, 1U);

  ASSERT_GSV(gsvHookRefuse(hook.get()));

  std::vector<float> residual(10);
  ASSERT_GSV(gsvHookGetResidual(hook.get(), "w", residual.data(), 10));
  EXPECT_EQ(residual, submitted);
  EXPECT_EQ(gsvHookRefuse(hook.get()), gsvInvalidUsage);
}

TEST(CFailureTest, AVetoedStepCommitsNowhere) {
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(3);
  for_each_rank(3, [&](int rank) {
    HookPtr const hook = make_hook(comms[static_cast<std::size_t>(rank)].get(), context.get(),
                                   "topk(density=0.1) ; feedback=residual");
    ASSERT_GSV(plan_one(hook.get(), 10));
    EXPECT_EQ(gsvHookVeto(hook.get(), gsvTimeout), gsvInvalidUsage);
    std::vector<float> gradient = {9, 1, 2, 3, 4, 5, 6, 7, 8, 0};
    std::vector<float> const submitted = gradient;
    ASSERT_GSV(gsvHookBegin(hook.get(), 0, 1.0F));
    EXPECT_EQ(gsvHookVeto(hook.get(), gsvSuccess), gsvInvalidArgument);
    gsvEvent_t event = {};
    ASSERT_GSV(gsvHookReduce(hook.get(), 0, gradient.data(), 10, gsvFloat32, nullptr, &event));
    ASSERT_GSV(gsvHookWait(hook.get(), &event));
    if (rank == 1) {
      EXPECT_GSV(gsvHookVeto(hook.get(), gsvTransportError));
      EXPECT_GSV(gsvHookVeto(hook.get(), any_number<gsvResult_t>(99)));  // the first one counts
    }
    gsvStepResult_t outcome = GSV_INIT(gsvStepResult_t);

    EXPECT_EQ(gsvHookFinish(hook.get(), &outcome), rank == 1 ? gsvTransportError : gsvPeerFailed);

    EXPECT_EQ(outcome.committed, 0U);
    gsvFailure_t failure = GSV_INIT(gsvFailure_t);
    ASSERT_GSV(gsvHookGetFailure(hook.get(), &failure));
    if (rank != 1) {
      EXPECT_EQ(failure.rank, 1);
      EXPECT_STREQ(failure.field, "vote");
    }
    std::vector<float> residual(10);
    ASSERT_GSV(gsvHookGetResidual(hook.get(), "w", residual.data(), 10));
    EXPECT_EQ(residual, submitted);
    EXPECT_GSV(step_one(hook.get(), 1, gradient, outcome));
    EXPECT_EQ(outcome.committed, 1U);
  });
}

TEST(CFailureTest, BucketsAfterAVetoTellTheOthers) {
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(2);
  for_each_rank(2, [&](int rank) {
    HookPtr const hook =
        make_hook(comms[static_cast<std::size_t>(rank)].get(), context.get(), "int8");
    ASSERT_GSV(plan_one(hook.get(), 10));
    ASSERT_GSV(gsvHookBegin(hook.get(), 0, 1.0F));
    if (rank == 1) {
      EXPECT_GSV(gsvHookVeto(hook.get(), any_number<gsvResult_t>(99)));
    }
    std::vector<float> gradient(10, 1.0F);
    gsvEvent_t event = {};

    gsvResult_t const reduced =
        gsvHookReduce(hook.get(), 0, gradient.data(), 10, gsvFloat32, nullptr, &event);

    EXPECT_EQ(reduced, rank == 1 ? gsvAborted : gsvSuccess);
    EXPECT_EQ(gsvHookWait(hook.get(), &event), rank == 1 ? gsvAborted : gsvPeerFailed);
    gsvStepResult_t outcome = GSV_INIT(gsvStepResult_t);
    EXPECT_NE(gsvHookFinish(hook.get(), &outcome), gsvSuccess);
    EXPECT_EQ(outcome.committed, 0U);
  });
}

// C-74: a child that does not call is undisturbed, one that does is told at once.
TEST(CFailureTest, C74AForkedChildIsToldSo) {
  ContextPtr const context = make_context();
  std::vector<CommPtr> const comms = make_local_comms(1);
  HookPtr const hook = make_hook(comms[0].get(), context.get(), "none");
  ASSERT_GSV(plan_one(hook.get(), 10));
  pid_t const child = ::fork();
  if (child == 0) ::_exit(gsvHookBegin(hook.get(), 0, 1.0F) == gsvForkedChild ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);

  EXPECT_EQ(status, 0);
  std::vector<float> gradient(10, 1.0F);
  gsvStepResult_t outcome = GSV_INIT(gsvStepResult_t);
  EXPECT_GSV(step_one(hook.get(), 0, gradient, outcome));
}

TEST(CFailureTest, WhatIsNotBuiltSaysSo) {
  gsvComm_t comm = nullptr;
  char id[GSV_NCCL_ID_BYTES];
  if (gsvNcclGetUniqueId(id) != gsvSuccess) {  // a build without it, or no library to open
    EXPECT_TRUE(says("NCCL")) << gsvGetLastError();
    EXPECT_NE(gsvCommInitNccl(&comm, 2, id, 0), gsvSuccess);
    EXPECT_TRUE(says("NCCL")) << gsvGetLastError();
  }
  EXPECT_NE(gsvCommInitNcclOver(&comm, nullptr), gsvSuccess);
  EXPECT_NE(gsvCommInitNcclBorrowed(&comm, nullptr), gsvSuccess);
  EXPECT_EQ(comm, nullptr);
  gsvContextConfig_t config = GSV_INIT(gsvContextConfig_t);
  config.backend = gsvBackendCuda;
  gsvContext_t context = nullptr;
  if (gsvContextCreate(&context, &config) != gsvSuccess) {
    EXPECT_TRUE(says("cuda")) << gsvGetLastError();
    return;
  }
  // A build with CUDA: a hook finds that there is no device.
  ContextPtr const owned(context);
  gsvRule_t rule = GSV_INIT(gsvRule_t);
  rule.spec = "int8";
  gsvHookOptions_t options = GSV_INIT(gsvHookOptions_t);
  options.rules = &rule;
  options.num_rules = 1;
  gsvHook_t hook = nullptr;
  gsvResult_t const made = gsvHookCreate(&hook, make_local_comms(1)[0].get(), &options, context);
  if (made == gsvSuccess) {
    gsvHookDestroy(hook);
    GTEST_SKIP() << "there is a CUDA device";
  }
  EXPECT_EQ(made, gsvDeviceError);
  EXPECT_TRUE(says("CUDA")) << gsvGetLastError();
}

}  // namespace
}  // namespace gradsieve::testing
