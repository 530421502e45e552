// SPDX-License-Identifier: Apache-2.0
// The main() of CUDA tests: without a device they are skipped, and say so.
#include <cstdio>

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  int num_devices = 0;
  cudaError_t const error = cudaGetDeviceCount(&num_devices);
  if (error != cudaSuccess || num_devices == 0) {
    std::printf("skipped: no CUDA device (%s) and no emulator\n", cudaGetErrorString(error));
    return 77;
  }
  return RUN_ALL_TESTS();
}
