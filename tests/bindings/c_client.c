// SPDX-License-Identifier: Apache-2.0
#include "tests/bindings/c_client.h"

#include <stdio.h>

static char const* const kNames[kClientTensors] = {"t0", "t1", "t2", "t3"};
static const uint32_t kFirstBucket[] = {0, 1};
static const uint32_t kSecondBucket[] = {2, 3};

#define TRY(call)                                              \
  do {                                                         \
    gsvResult_t const result = (call);                         \
    if (result != gsvSuccess) {                                \
      fprintf(stderr, "%s\n  %s\n", #call, gsvGetLastError()); \
      return result;                                           \
    }                                                          \
  } while (0)

float client_gradient(int32_t rank, uint64_t step, uint32_t tensor, uint64_t index) {
  uint64_t x = index + 1000003u * step + 7919u * tensor + 104729u * (uint64_t)(rank + 1);
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  float const unit = (float)(x >> 40) / 16777216.0f - 0.5f;
  return index % 17 == step % 17 ? 40.0f * unit : unit;
}

static void fill(int32_t rank, uint64_t step, ClientJob const* job, float* gradients) {
  for (uint32_t tensor = 0; tensor < kClientTensors; ++tensor) {
    for (uint64_t i = 0; i < job->tensor_elements[tensor]; ++i) {
      *gradients++ = client_gradient(rank, step, tensor, i);
    }
  }
}

static gsvResult_t plan(gsvHook_t hook, ClientJob const* job) {
  gsvTensorDesc_t tensors[kClientTensors];
  for (uint32_t i = 0; i < kClientTensors; ++i) {
    tensors[i] = GSV_INIT(gsvTensorDesc_t);
    tensors[i].name = kNames[i];
    tensors[i].num_elements = job->tensor_elements[i];
  }
  gsvBucketDesc_t buckets[kClientBuckets] = {GSV_INIT(gsvBucketDesc_t), GSV_INIT(gsvBucketDesc_t)};
  buckets[0].tensors = kFirstBucket;
  buckets[0].num_tensors = 2;
  buckets[1].tensors = kSecondBucket;
  buckets[1].num_tensors = 2;
  return gsvHookPlan(hook, tensors, kClientTensors, buckets, kClientBuckets);
}

static gsvResult_t train(gsvHook_t hook, int32_t rank, ClientJob const* job, float* results,
                         float* residuals) {
  uint64_t const first = job->tensor_elements[0] + job->tensor_elements[1];
  uint64_t const second = job->tensor_elements[2] + job->tensor_elements[3];
  TRY(plan(hook, job));
  for (uint64_t step = 0; step < job->num_steps; ++step) {
    float* const gradients = results + step * (first + second);
    fill(rank, step, job, gradients);
    gsvEvent_t events[kClientBuckets];
    gsvStepResult_t outcome = GSV_INIT(gsvStepResult_t);
    TRY(gsvHookBegin(hook, step, 1.0f));
    TRY(gsvHookReduce(hook, 0, gradients, first, gsvFloat32, NULL, &events[0]));
    TRY(gsvHookReduce(hook, 1, gradients + first, second, gsvFloat32, NULL, &events[1]));
    TRY(gsvHookWait(hook, &events[1]));
    TRY(gsvHookWait(hook, &events[0]));
    TRY(gsvHookFinish(hook, &outcome));
    if (!outcome.committed) return gsvInternal;
  }
  for (uint32_t i = 0; i < kClientTensors; ++i) {
    TRY(gsvHookGetResidual(hook, kNames[i], residuals, job->tensor_elements[i]));
    residuals += job->tensor_elements[i];
  }
  return gsvSuccess;
}

gsvResult_t client_train(gsvComm_t comm, gsvContext_t context, ClientJob const* job, float* results,
                         float* residuals) {
  gsvRule_t rule = GSV_INIT(gsvRule_t);
  rule.match = "*";
  rule.spec = job->spec;
  gsvHookOptions_t options = GSV_INIT(gsvHookOptions_t);
  options.rules = &rule;
  options.num_rules = 1;
  options.rollback = job->rollback;
  options.no_progress_thread = job->no_progress_thread;
  int32_t rank = -1;
  TRY(gsvCommUserRank(comm, &rank));
  gsvHook_t hook = NULL;
  TRY(gsvHookCreate(&hook, comm, &options, context));
  gsvResult_t const result = train(hook, rank, job, results, residuals);
  TRY(gsvHookDestroy(hook));
  return result;
}
