// SPDX-License-Identifier: Apache-2.0
// Two ranks as threads, one step: what a project that only installed the package can do.
#include <cstdio>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gradsieve/gradsieve.hpp"

namespace gsv = gradsieve;

namespace {

constexpr int kNumRanks = 2;
constexpr std::uint64_t kNumElements = 4096;

bool reduce_once(gsv::Transport& transport, std::vector<float>& gradient) {
  gsv::HookOptions options;
  options.rules = {{.match = "*", .spec = "topk(density=0.05) | int8 ; feedback=residual"}};
  gsv::Hook hook(transport, options);
  std::vector<gsv::TensorDesc> const tensors = {{.name = "weight", .num_elements = kNumElements}};
  std::vector<gsv::BucketDesc> const buckets = {{.tensors = {"weight"}}};
  hook.plan(tensors, buckets);

  gsv::Event event;
  return hook.begin(0).ok() && hook.reduce(0, std::span(gradient), event).ok() &&
         hook.finish().committed;
}

}  // namespace

int main() try {
  gsv::LocalGroup group(kNumRanks);
  std::vector<std::vector<float>> gradients(kNumRanks, std::vector<float>(kNumElements));
  std::vector<char> done(kNumRanks, 0);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    auto const index = static_cast<std::size_t>(rank);
    gradients[index][index] = 1.0F;
    ranks.emplace_back([&, rank, index] {
      done[index] = reduce_once(group.transport(rank), gradients[index]) ? 1 : 0;
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }

  bool const agree = done[0] != 0 && done[1] != 0 && gradients[0] == gradients[1];
  std::printf("mean of two spikes: %g %g, ranks %s\n", static_cast<double>(gradients[0][0]),
              static_cast<double>(gradients[0][1]), agree ? "agree" : "disagree");
  return agree && gradients[0][0] > 0.4F && gradients[0][1] > 0.4F ? 0 : 1;
} catch (gsv::Error const& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
