// SPDX-License-Identifier: Apache-2.0
// A training step on GPUs: gradients are made, exchanged over NCCL and used on one stream, and the
// host waits for nothing until it wants to know the loss. Ranks are processes of an MPI program.
#include <iostream>
#include <random>
#include <vector>

#include <cuda_runtime.h>
#include <mpi.h>

#include "gradsieve/gradsieve.hpp"
#include "gradsieve/mpi.hpp"
#include "gradsieve/nccl.hpp"

namespace {

constexpr int kFeatures = 1024, kSamples = 16, kThreads = 128;
constexpr float kLearningRate = 0.02F;

/// error[s] ← x[s]·weights − target[s]; one block a sample.
__global__ void forward(float const* x, float const* target, float const* weights, float* error) {
  __shared__ float partial[kThreads];
  float sum = 0.0F;
  for (int f = static_cast<int>(threadIdx.x); f < kFeatures; f += kThreads) {
    sum += x[blockIdx.x * kFeatures + static_cast<unsigned>(f)] * weights[f];
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total = -target[blockIdx.x];
  for (int t = 0; t < kThreads; ++t) total += partial[t];
  error[blockIdx.x] = total;
}

__global__ void backward(float const* x, float const* error, float* gradient) {
  unsigned const f = blockIdx.x * kThreads + threadIdx.x;
  float sum = 0.0F;
  for (unsigned s = 0; s < kSamples; ++s) sum += error[s] * x[s * kFeatures + f];
  gradient[f] = sum / kSamples;
}

/// Asks the device, not the host, whether the step counts.
__global__ void update(float const* gradient, std::uint32_t const* committed, float* weights) {
  unsigned const f = blockIdx.x * kThreads + threadIdx.x;
  if (*committed != 0) weights[f] -= kLearningRate * gradient[f];
}

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

struct Batch {
  std::vector<float> x, target;  // [kSamples, kFeatures], [kSamples]
};

Batch make_batch(int rank) {
  std::mt19937 random(static_cast<unsigned>(rank + 1));
  std::normal_distribution<float> normal;
  Batch batch{std::vector<float>(kSamples * kFeatures), std::vector<float>(kSamples)};
  for (std::size_t s = 0; s < kSamples; ++s) {
    for (std::size_t f = 0; f < kFeatures; ++f) {
      float const x = batch.x[s * kFeatures + f] = normal(random);
      if (f % 100 == 0) batch.target[s] += 0.3F * x;
    }
  }
  return batch;
}

double loss_of(float const* error, cudaStream_t stream) {
  float host[kSamples];
  check(cudaMemcpyAsync(host, error, sizeof host, cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  double loss = 0.0;
  for (float const e : host) loss += 0.5 * e * e / kSamples;
  return loss;
}

bool train() {
  // [tag: hook]
  auto const mpi = gradsieve::make_mpi_transport(MPI_COMM_WORLD);
  int num_devices = 0;
  check(cudaGetDeviceCount(&num_devices));
  check(cudaSetDevice(mpi->rank() % num_devices));
  auto const nccl = gradsieve::make_nccl_transport(*mpi);  // its id travels over MPI
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  gradsieve::Hook hook(*nccl, {.rules = {{"*", "topk(density=0.05) | int8 ; feedback=residual"}},
                               .backend = gradsieve::Backend::cuda,
                               .stream = {stream}});
  gradsieve::TensorDesc const tensors[] = {{.name = "weights", .num_elements = kFeatures}};
  gradsieve::BucketDesc const buckets[] = {{{"weights"}}};
  hook.plan(tensors, buckets);
  // [end: hook]

  Batch const batch = make_batch(mpi->rank());
  float *x, *target, *error, *weights, *gradient;
  check(cudaMalloc(&x, sizeof(float) * batch.x.size()));
  check(cudaMalloc(&target, sizeof(float) * kSamples));
  check(cudaMalloc(&error, sizeof(float) * kSamples));
  check(cudaMalloc(&weights, sizeof(float) * kFeatures));
  check(cudaMalloc(&gradient, sizeof(float) * kFeatures));
  check(cudaMemcpy(x, batch.x.data(), sizeof(float) * batch.x.size(), cudaMemcpyHostToDevice));
  check(cudaMemcpy(target, batch.target.data(), sizeof(float) * kSamples, cudaMemcpyHostToDevice));
  check(cudaMemsetAsync(weights, 0, sizeof(float) * kFeatures, stream));

  double first = 0.0;
  for (std::uint64_t step = 0; step < 20; ++step) {
    forward<<<kSamples, kThreads, 0, stream>>>(x, target, weights, error);
    backward<<<kFeatures / kThreads, kThreads, 0, stream>>>(x, error, gradient);
    // [tag: step]
    gradsieve::TensorView const bucket(gradient, kFeatures, gradsieve::DType::f32,
                                       gradsieve::Device::cuda);
    gradsieve::Event event;
    if (!hook.begin(step).ok()) return false;
    if (!hook.reduce(0, bucket, event).ok()) return false;  // local gradient in, mean out
    if (!hook.finish().status.ok()) return false;           // the vote is on its way: no waiting
    update<<<kFeatures / kThreads, kThreads, 0, stream>>>(gradient, hook.committed_word(), weights);
    // [end: step]
    if (step == 0) first = loss_of(error, stream);
  }
  bool const committed = hook.synchronize().committed;
  double const last = loss_of(error, stream);
  if (mpi->rank() == 0) {
    std::cout << "loss " << first << " -> " << last
              << ", handed to NCCL by rank 0: " << hook.bucket_stats()[0].total_wire_bytes
              << " bytes\n";
  }
  for (float* const memory : {x, target, error, weights, gradient}) check(cudaFree(memory));
  return committed && last < 0.5 * first;
}

}  // namespace

int main(int argc, char** argv) {
  int thread_level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &thread_level);
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    std::cout << "skipped: no CUDA device\n";
    MPI_Finalize();
    return 0;
  }
  bool went_well = false;
  try {
    went_well = train();
  } catch (std::exception const& error) {
    std::cerr << "train_cuda: " << error.what() << '\n';
  }
  MPI_Finalize();
  return went_well ? 0 : 1;
}
