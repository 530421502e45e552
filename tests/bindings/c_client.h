// SPDX-License-Identifier: Apache-2.0
// A trainer written in C11 against gradsieve.h, for tests that compare it with the C++ hook.
#pragma once

#include "gradsieve/gradsieve.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { kClientTensors = 4, kClientBuckets = 2 };

/// t0 and t1 travel in bucket 0, t2 and t3 in bucket 1.
typedef struct ClientJob {
  char const* spec;
  uint32_t num_steps;
  uint32_t rollback;
  uint32_t no_progress_thread;
  uint64_t tensor_elements[kClientTensors];
} ClientJob;

/// Different in every argument, heavy-tailed enough for a top-k to have a choice.
float client_gradient(int32_t rank, uint64_t step, uint32_t tensor, uint64_t index);

/// All steps of one rank. `results` [num_steps][sum of elements] receives the means, `residuals`
/// [sum of elements] what is left at the end. The first result that is not gsvSuccess.
gsvResult_t client_train(gsvComm_t comm, gsvContext_t context, ClientJob const* job, float* results,
                         float* residuals);

#ifdef __cplusplus
}
#endif
