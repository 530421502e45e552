// SPDX-License-Identifier: Apache-2.0
// A plain MPI training loop that calls gradsieve between backward and update.
#include <iostream>
#include <random>
#include <vector>

#include <mpi.h>

#include "gradsieve/gradsieve.hpp"
#include "gradsieve/mpi.hpp"

namespace {
constexpr int kFeatures = 4096, kSamples = 64;
constexpr float kLearningRate = 0.02F;

struct Batch {
  std::vector<float> inputs, targets;  // [kSamples, kFeatures], [kSamples]
};

Batch make_batch(int rank, int step) {
  std::mt19937 random(static_cast<unsigned>(1000 * step + rank));
  std::normal_distribution<float> normal;
  Batch batch{std::vector<float>(kSamples * kFeatures), std::vector<float>(kSamples, 0.0F)};
  for (std::size_t s = 0; s < kSamples; ++s) {
    for (std::size_t f = 0; f < kFeatures; ++f) {
      float const x = batch.inputs[s * kFeatures + f] = normal(random);
      batch.targets[s] += f % 100 == 0 ? x * 0.1F : 0.0F;
    }
  }
  return batch;
}

double backward(Batch const& batch, std::vector<float> const& weights,
                std::vector<float>& gradient) {
  double loss = 0.0;
  gradient.assign(kFeatures, 0.0F);
  for (std::size_t s = 0; s < kSamples; ++s) {
    float const* const x = batch.inputs.data() + s * kFeatures;
    float error = -batch.targets[s];
    for (std::size_t f = 0; f < kFeatures; ++f) error += weights[f] * x[f];
    for (std::size_t f = 0; f < kFeatures; ++f) gradient[f] += error * x[f] / kSamples;
    loss += 0.5 * error * error / kSamples;
  }
  return loss;
}

}  // namespace

int main(int argc, char** argv) {
  int thread_level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &thread_level);
  double first = 0.0, last = 0.0;
  {
    // [tag: hook]
    auto const transport = gradsieve::make_mpi_transport(MPI_COMM_WORLD);
    gradsieve::Hook hook(*transport,
                         {.rules = {{"*", "topk(density=0.02) | int8 ; feedback=residual"}}});
    gradsieve::TensorDesc const tensors[] = {{.name = "weights", .num_elements = kFeatures}};
    gradsieve::BucketDesc const buckets[] = {{{"weights"}}};
    hook.plan(tensors, buckets);

    std::vector<float> weights(kFeatures, 0.0F), gradient;
    for (int step = 0; step < 60; ++step) {
      last = backward(make_batch(transport->rank(), step), weights, gradient);
      if (step == 0) first = last;
      gradsieve::Event event;
      if (!hook.begin(static_cast<std::uint64_t>(step)).ok()) return 1;
      if (!hook.reduce(0, gradsieve::TensorView(std::span(gradient)), event).ok()) return 1;
      if (!hook.finish().committed) return 1;  // all ranks know: the mean is in `gradient`
      for (std::size_t f = 0; f < kFeatures; ++f) weights[f] -= kLearningRate * gradient[f];
    }
    // [end: hook]
    if (transport->rank() == 0)
      std::cout << "loss " << first << " -> " << last
                << ", sent by rank 0: " << hook.bucket_stats()[0].total_wire_bytes << " bytes\n";
  }
  MPI_Finalize();
  return last < 0.5 * first ? 0 : 1;
}
