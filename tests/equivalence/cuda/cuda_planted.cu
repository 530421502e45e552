// SPDX-License-Identifier: Apache-2.0
// Kernels with one mistake each. The emulator has to find every one of them; a run that it lets
// pass means that the other CUDA tests prove nothing.
#include <cstdio>
#include <cstring>

#include <cuda_runtime.h>

namespace {

constexpr unsigned kThreads = 128;

__global__ void out_of_bounds(float* values, unsigned count) {
  unsigned const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= count) values[i] = 1;  // one too many
}

__global__ void race(float* values) {
  __shared__ float shared[kThreads];
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  // no barrier
  values[threadIdx.x] = shared[kThreads - 1 - threadIdx.x];
}

__global__ void uninitialised(float const* values, float* sums) {
  sums[threadIdx.x] = values[threadIdx.x] + 1;
}

__global__ void fill(float* values, float value) { values[threadIdx.x] = value; }

bool run_out_of_bounds() {
  float* values = nullptr;
  cudaMalloc(&values, 100 * sizeof(float));
  out_of_bounds<<<1, kThreads>>>(values, 100);
  return cudaDeviceSynchronize() == cudaSuccess;
}

bool run_race() {
  float* values = nullptr;
  cudaMalloc(&values, kThreads * sizeof(float));
  race<<<1, kThreads>>>(values);
  return cudaDeviceSynchronize() == cudaSuccess;
}

bool run_uninitialised() {
  float* values = nullptr;
  cudaMalloc(&values, 2 * kThreads * sizeof(float));
  uninitialised<<<1, kThreads>>>(values, values + kThreads);
  return cudaDeviceSynchronize() == cudaSuccess;
}

// The copy needs the event of the stream that fills; only with lazy streams does that always show.
bool run_missing_wait(bool waits) {
  float* values = nullptr;
  cudaMalloc(&values, kThreads * sizeof(float));
  cudaStream_t writer;
  cudaStream_t reader;
  cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking);
  fill<<<1, kThreads, 0, writer>>>(values, 1);
  cudaStreamSynchronize(writer);
  fill<<<1, kThreads, 0, writer>>>(values, 2);
  cudaEvent_t filled;
  cudaEventCreateWithFlags(&filled, cudaEventDisableTiming);
  cudaEventRecord(filled, writer);
  if (waits) cudaStreamWaitEvent(reader, filled, 0);
  float read[kThreads] = {};
  cudaMemcpyAsync(read, values, sizeof read, cudaMemcpyDeviceToHost, reader);
  cudaStreamSynchronize(reader);
  bool const is_right = read[0] == 2 && read[kThreads - 1] == 2;
  cudaDeviceSynchronize();
  return is_right;
}

}  // namespace

// Exit status 0: nothing was noticed. The emulator makes it 99 where it noticed; 99 is ours where
// the result is wrong.
int main(int argc, char** argv) {
  char const* const mistake = argc == 2 ? argv[1] : "";
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) return 77;
  if (std::strcmp(mistake, "none") == 0) return run_missing_wait(true) ? 0 : 99;
  if (std::strcmp(mistake, "missing_wait") == 0) return run_missing_wait(false) ? 0 : 99;
  if (std::strcmp(mistake, "out_of_bounds") == 0) run_out_of_bounds();
  if (std::strcmp(mistake, "race") == 0) run_race();
  if (std::strcmp(mistake, "uninitialised") == 0) run_uninitialised();
  std::printf("the mistake '%s' ran to its end\n", mistake);
  return 0;
}
