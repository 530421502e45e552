// SPDX-License-Identifier: Apache-2.0
// Case C-81: a host that is linked to neither MPI nor libgsv.so and opens both in a local scope, as
// scripting languages do, then reduces [1, 2] from each rank.
// usage: c_mpi_host LIBGSV LIBGSV_MPI LIBMPI
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "gradsieve/gradsieve.h"

static void* open_local(char const* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) fprintf(stderr, "%s\n", dlerror());
  return library;
}

// A function pointer from dlsym's object pointer, as POSIX promises it.
#define LOAD(library, name)                                          \
  do {                                                               \
    void* const symbol = dlsym(library, #name);                      \
    if (symbol == NULL) return fprintf(stderr, "no %s\n", #name), 1; \
    memcpy(&name, &symbol, sizeof symbol);                           \
  } while (0)

#define EXPECT(condition)                                                              \
  do {                                                                                 \
    if (!(condition)) return fprintf(stderr, "%s: %s\n", #condition, last_error()), 1; \
  } while (0)

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  void* const gsv = open_local(argv[1]);
  void* const mpi = open_local(argv[3]);
  if (gsv == NULL || mpi == NULL) return 1;
  int (*MPI_Init)(int*, char***);
  int (*MPI_Finalize)(void);
  LOAD(mpi, MPI_Init);
  LOAD(mpi, MPI_Finalize);
  gsvResult_t (*gsvCommInitMpi)(gsvComm_t*, void const*, char const*);
  gsvResult_t (*gsvCommDestroy)(gsvComm_t);
  gsvResult_t (*gsvCommCount)(gsvComm_t, int32_t*);
  gsvResult_t (*gsvSparseAllReduce)(uint64_t const*, float const*, uint64_t, uint64_t, float,
                                    gsvSparse_t*, gsvSparseOptions_t const*, gsvComm_t,
                                    gsvStream_t);
  gsvResult_t (*gsvSparseGet)(gsvSparse_t, uint32_t, uint64_t const**, float const**, uint64_t*);
  gsvResult_t (*gsvSparseDestroy)(gsvSparse_t);
  char const* (*gsvGetLastError)(void);
  LOAD(gsv, gsvCommInitMpi);
  LOAD(gsv, gsvCommDestroy);
  LOAD(gsv, gsvCommCount);
  LOAD(gsv, gsvSparseAllReduce);
  LOAD(gsv, gsvSparseGet);
  LOAD(gsv, gsvSparseDestroy);
  LOAD(gsv, gsvGetLastError);
  char const* (*const last_error)(void) = gsvGetLastError;

  gsvComm_t comm = NULL;
  EXPECT(gsvCommInitMpi(&comm, NULL, argv[2]) == gsvInvalidUsage);
  EXPECT(strstr(last_error(), "MPI is not initialised") != NULL);

  EXPECT(MPI_Init(NULL, NULL) == 0);
  EXPECT(gsvCommInitMpi(&comm, NULL, argv[2]) == gsvSuccess);
  int32_t world_size = 0;
  EXPECT(gsvCommCount(comm, &world_size) == gsvSuccess);
  uint64_t const indices[2] = {0, 1};
  float const values[2] = {1.0f, 2.0f};
  gsvSparse_t result = NULL;
  EXPECT(gsvSparseAllReduce(indices, values, 2, 2, 1.0f, &result, NULL, comm, NULL) == gsvSuccess);
  uint64_t const* places = NULL;
  float const* sums = NULL;
  uint64_t count = 0;
  EXPECT(gsvSparseGet(result, 0, &places, &sums, &count) == gsvSuccess);
  EXPECT(count == 2 && sums[0] == (float)world_size && sums[1] == 2.0f * (float)world_size);
  EXPECT(gsvSparseDestroy(result) == gsvSuccess);
  EXPECT(gsvCommDestroy(comm) == gsvSuccess);
  EXPECT(MPI_Finalize() == 0);
  return 0;
}
