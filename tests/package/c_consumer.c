// SPDX-License-Identifier: Apache-2.0
// One rank, one step, through an installed libgsv.so; and what it says of GPUs, where there are none.
#include <stdio.h>

#include "gradsieve/gradsieve.h"

#define TRY(call)                                            \
  do {                                                       \
    if ((call) != gsvSuccess) {                              \
      fprintf(stderr, "%s: %s\n", #call, gsvGetLastError()); \
      return 1;                                              \
    }                                                        \
  } while (0)

/// Without a GPU, a driver or NCCL that is a sentence, and nothing worse. 0 if so.
static int ask_for_devices(void) {
  gsvContextConfig_t config = GSV_INIT(gsvContextConfig_t);
  config.backend = gsvBackendCuda;
  gsvContext_t context = NULL;
  gsvComm_t comm = NULL;
  gsvHook_t hook = NULL;
  gsvRule_t rule = GSV_INIT(gsvRule_t);
  rule.spec = "int8";
  gsvHookOptions_t options = GSV_INIT(gsvHookOptions_t);
  options.rules = &rule;
  options.num_rules = 1;
  TRY(gsvCommInitLocal(&comm, 1));
  gsvResult_t cuda = gsvContextCreate(&context, &config);
  if (cuda == gsvSuccess) cuda = gsvHookCreate(&hook, comm, &options, context);
  printf("cuda: %s%s%s\n", gsvGetResultName(cuda), cuda == gsvSuccess ? "" : ", ",
         cuda == gsvSuccess ? "" : gsvGetLastError());
  char id[GSV_NCCL_ID_BYTES];
  gsvResult_t const nccl = gsvNcclGetUniqueId(id);
  printf("nccl: %s%s%s\n", gsvGetResultName(nccl), nccl == gsvSuccess ? "" : ", ",
         nccl == gsvSuccess ? "" : gsvGetLastError());
  TRY(gsvHookDestroy(hook));
  TRY(gsvCommDestroy(comm));
  TRY(gsvContextDestroy(context));
  int const cuda_is_told = cuda == gsvSuccess || cuda == gsvNotBuilt || cuda == gsvDeviceError;
  int const nccl_is_told = nccl == gsvSuccess || nccl == gsvNotBuilt || nccl == gsvUnsupported ||
                           nccl == gsvDeviceError || nccl == gsvTransportError;
  return cuda_is_told && nccl_is_told ? 0 : 1;
}

int main(void) {
  gsvContext_t context = NULL;
  gsvComm_t comm = NULL;
  gsvHook_t hook = NULL;
  gsvRule_t rule = GSV_INIT(gsvRule_t);
  rule.spec = "topk(density=0.25) ; feedback=residual";
  gsvHookOptions_t options = GSV_INIT(gsvHookOptions_t);
  options.rules = &rule;
  options.num_rules = 1;
  gsvTensorDesc_t tensor = GSV_INIT(gsvTensorDesc_t);
  tensor.name = "w";
  tensor.num_elements = 4;
  uint32_t const first = 0;
  gsvBucketDesc_t bucket = GSV_INIT(gsvBucketDesc_t);
  bucket.tensors = &first;
  bucket.num_tensors = 1;
  gsvStepResult_t result = GSV_INIT(gsvStepResult_t);
  gsvEvent_t event;
  float gradient[4] = {1.0f, -8.0f, 2.0f, 3.0f};

  TRY(gsvContextCreate(&context, NULL));
  TRY(gsvCommInitLocal(&comm, 1));
  TRY(gsvHookCreate(&hook, comm, &options, context));
  TRY(gsvHookPlan(hook, &tensor, 1, &bucket, 1));
  TRY(gsvHookBegin(hook, 0, 1.0f));
  TRY(gsvHookReduce(hook, 0, gradient, 4, gsvFloat32, NULL, &event));
  TRY(gsvHookFinish(hook, &result));
  TRY(gsvHookDestroy(hook));
  TRY(gsvCommDestroy(comm));
  TRY(gsvContextDestroy(context));
  printf("gradsieve %s: %g %g %g %g\n", gsvGetVersionText(), gradient[0], gradient[1], gradient[2],
         gradient[3]);
  if (!result.committed || gradient[1] != -8.0f || gradient[3] != 0.0f) return 1;
  return ask_for_devices();
}
