// SPDX-License-Identifier: Apache-2.0
// Handles that destroy themselves, and ranks as threads, for tests of the C interface.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "gradsieve/gradsieve.h"

namespace gradsieve::testing {

#define EXPECT_GSV(call) EXPECT_EQ((call), gsvSuccess) << gsvGetLastError()
#define ASSERT_GSV(call) ASSERT_EQ((call), gsvSuccess) << gsvGetLastError()

/// What a C caller can put into an enum, whether or not it is an enumerator.
template <typename Enum>
[[nodiscard]] Enum any_number(std::uint32_t number) {
  static_assert(sizeof(Enum) == sizeof number);
  Enum given;
  std::memcpy(&given, &number, sizeof given);
  return given;
}

struct Destroy {
  void operator()(gsvContext_t context) const { gsvContextDestroy(context); }
  void operator()(gsvComm_t comm) const { gsvCommDestroy(comm); }
  void operator()(gsvHook_t hook) const { gsvHookDestroy(hook); }
  void operator()(gsvSparse_t sparse) const { gsvSparseDestroy(sparse); }
};
using ContextPtr = std::unique_ptr<gsvContext, Destroy>;
using CommPtr = std::unique_ptr<gsvComm, Destroy>;
using HookPtr = std::unique_ptr<gsvHook, Destroy>;
using SparsePtr = std::unique_ptr<gsvSparse, Destroy>;

[[nodiscard]] inline ContextPtr make_context(std::uint64_t seed = 17) {
  gsvContextConfig_t config = GSV_INIT(gsvContextConfig_t);
  config.seed = seed;
  gsvContext_t context = nullptr;
  EXPECT_GSV(gsvContextCreate(&context, &config));
  return ContextPtr(context);
}

[[nodiscard]] inline std::vector<CommPtr> make_local_comms(int world_size) {
  std::vector<gsvComm_t> comms(static_cast<std::size_t>(world_size));
  EXPECT_GSV(gsvCommInitLocal(comms.data(), world_size));
  std::vector<CommPtr> owned;
  for (gsvComm_t const comm : comms) owned.emplace_back(comm);
  return owned;
}

/// A hook with one rule for all tensors.
[[nodiscard]] inline HookPtr make_hook(gsvComm_t comm, gsvContext_t context, char const* spec,
                                       gsvHookOptions_t options = GSV_INIT(gsvHookOptions_t)) {
  gsvRule_t rule = GSV_INIT(gsvRule_t);
  rule.spec = spec;
  options.rules = &rule;
  options.num_rules = 1;
  gsvHook_t hook = nullptr;
  EXPECT_GSV(gsvHookCreate(&hook, comm, &options, context));
  return HookPtr(hook);
}

/// One tensor "w" in one bucket.
[[nodiscard]] inline gsvResult_t plan_one(gsvHook_t hook, std::uint64_t num_elements) {
  gsvTensorDesc_t tensor = GSV_INIT(gsvTensorDesc_t);
  tensor.name = "w";
  tensor.num_elements = num_elements;
  std::uint32_t const index = 0;
  gsvBucketDesc_t bucket = GSV_INIT(gsvBucketDesc_t);
  bucket.tensors = &index;
  bucket.num_tensors = 1;
  return gsvHookPlan(hook, &tensor, 1, &bucket, 1);
}

/// begin, reduce, wait, finish on that one bucket; the first result that is not success.
inline gsvResult_t step_one(gsvHook_t hook, std::uint64_t step, std::vector<float>& gradient,
                            gsvStepResult_t& outcome) {
  gsvEvent_t event;
  gsvResult_t first = gsvHookBegin(hook, step, 1.0F);
  auto const keep = [&](gsvResult_t result) {
    if (first == gsvSuccess) first = result;
  };
  keep(gsvHookReduce(hook, 0, gradient.data(), gradient.size(), gsvFloat32, nullptr, &event));
  keep(gsvHookWait(hook, &event));
  keep(gsvHookFinish(hook, &outcome));
  return first;
}

/// Runs body(rank) in a thread per rank.
inline void for_each_rank(int world_size, std::function<void(int)> const& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace gradsieve::testing
