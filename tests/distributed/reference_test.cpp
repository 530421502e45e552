// SPDX-License-Identifier: Apache-2.0
// The references on what can be checked by hand, and the hook against them.
#include "comm/exchange/reference.hpp"

#include <cctype>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "gradsieve/hook.hpp"
#include "gradsieve/registry.hpp"

#include "tests/support/rank_runner.hpp"

namespace gradsieve::test {
namespace {

constexpr std::uint64_t kSeed = 17;

std::vector<float> gradient_of(int rank, std::size_t count) {
  std::vector<float> gradient(count);
  for (std::size_t i = 0; i < count; ++i)
    gradient[i] =
        static_cast<float>((1000 * static_cast<std::size_t>(rank) + i * 37) % 613) * 0.173F - 50.0F;
  return gradient;
}

/// A step of all ranks without feedback.
class Step {
 public:
  Step(std::string const& spec, int world_size, std::size_t count)
      : chain_(make_chain(spec)),
        piece_{.id = tensor_id("t"), .num_elements = count},
        memory_(std::size_t{16} << 20) {
    for (int rank = 0; rank < world_size; ++rank) {
      gradients_.push_back(gradient_of(rank, count));
      residuals_.emplace_back(count);
    }
    workspace_ = Workspace(memory_);
    contexts_.resize(gradients_.size());
    for (std::size_t r = 0; r < gradients_.size(); ++r) {
      contexts_[r].workspace = &workspace_;
      contexts_[r].words = &words_;
      contexts_[r].seed = kSeed;
      contexts_[r].rank = static_cast<int>(r);
      contexts_[r].world_size = world_size;
      ranks_.push_back(
          {&contexts_[r], std::span<float const>(gradients_[r]), {{}, residuals_[r], 1.0F}, {}});
    }
  }
  [[nodiscard]] exchange::ReferenceStep step() const {
    return {chain_.compressor.get(), piece_, 1.0 / static_cast<double>(ranks_.size()), ranks_};
  }
  [[nodiscard]] std::vector<float> const& residual(std::size_t rank) const {
    return residuals_[rank];
  }

 private:
  Chain chain_;
  TensorInfo piece_;
  std::vector<std::byte> memory_;
  Workspace workspace_;
  StepWords words_;
  std::vector<std::vector<float>> gradients_;
  std::vector<std::vector<float>> residuals_;
  std::vector<ExecContext> contexts_;
  std::vector<exchange::ReferenceRank> ranks_;
};

TEST(Reference, GatherOfWholeGradientsIsTheWeightedSumInRankOrder) {
  constexpr std::size_t kCount = 100;
  Step const step("none", 3, kCount);
  std::vector<float> result(kCount, 5.0F);

  ASSERT_TRUE(exchange::reference_gather(step.step(), std::span<float>(result)).ok());

  float const weight = static_cast<float>(1.0 / 3.0);
  for (std::size_t i = 0; i < kCount; ++i) {
    float expected = 0.0F;
    for (int rank = 0; rank < 3; ++rank) expected += weight * gradient_of(rank, kCount)[i];
    EXPECT_EQ(result[i], expected) << i;
    EXPECT_EQ(step.residual(1)[i], 0.0F) << i;
  }
}

TEST(Reference, TwoShotOfWholeGradientsLosesNothingTwice) {
  constexpr std::size_t kCount = 101;
  Step const step("none", 4, kCount);
  std::vector<float> gathered(kCount);
  std::vector<float> result(kCount);
  std::vector<std::vector<float>> lost(4, std::vector<float>(kCount, 3.0F));
  std::vector<std::span<float>> const undelivered(lost.begin(), lost.end());

  ASSERT_TRUE(exchange::reference_gather(step.step(), std::span<float>(gathered)).ok());
  ASSERT_TRUE(
      exchange::reference_two_shot(step.step(), std::span<float>(result), undelivered).ok());

  EXPECT_EQ(result, gathered);
  for (auto const& values : lost) EXPECT_EQ(values, std::vector<float>(kCount, 0.0F));
}

class HookReference : public testing::TestWithParam<std::tuple<std::string, int>> {};

/// What a hook's first step makes of one tensor, on rank 0.
std::vector<float> hook_result(std::string const& spec, int world_size, std::size_t count) {
  std::vector<float> result;
  run_ranks(world_size, [&](Transport& transport) {
    HookOptions options;
    options.rules = {{"*", spec}};
    options.seed = kSeed;
    Hook hook(transport, options);
    std::vector<TensorDesc> const tensors{{.name = "t", .num_elements = count}};
    std::vector<BucketDesc> const buckets{{{"t"}}};
    hook.plan(tensors, buckets);
    std::vector<float> gradient = gradient_of(transport.rank(), count);
    Event event;
    ASSERT_TRUE(hook.begin(0).ok());
    ASSERT_TRUE(hook.reduce(0, std::span<float>(gradient), event).ok());
    ASSERT_TRUE(hook.wait(event).ok()) << hook.failure().message;
    ASSERT_TRUE(hook.finish().committed);
    if (transport.rank() == 0) result = gradient;
  });
  return result;
}

TEST_P(HookReference, EqualsItsReferenceBitForBit) {
  constexpr std::size_t kCount = 777;
  auto const& [spec, world_size] = GetParam();
  Step const step(spec, world_size, kCount);
  std::vector<float> expected(kCount);
  bool const two_shot = spec.find("two_shot") != std::string::npos;
  bool const sum = spec.find("all_reduce") != std::string::npos;
  Status const status =
      two_shot ? exchange::reference_two_shot(step.step(), std::span<float>(expected), {})
      : sum    ? exchange::reference_all_reduce(step.step(), std::span<float>(expected))
               : exchange::reference_gather(step.step(), std::span<float>(expected));
  ASSERT_TRUE(status.ok()) << status.message();

  EXPECT_EQ(hook_result(spec, world_size, kCount), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Specs, HookReference,
    testing::Combine(testing::Values("none ; feedback=none ; exchange=gather",
                                     "topk(density=0.1) ; feedback=none ; exchange=gather",
                                     "int8(block=64) ; feedback=none ; exchange=two_shot",
                                     "bf16 ; feedback=none ; exchange=two_shot",
                                     "sign ; feedback=none ; exchange=gather",
                                     "none ; feedback=none ; exchange=all_reduce",
                                     "randomk(density=0.1) ; feedback=none ; exchange=all_reduce"),
                     testing::Values(1, 2, 4)),
    [](auto const& instance) {
      std::string name = std::get<0>(instance.param) + "_" +
                         std::to_string(std::get<1>(instance.param)) + "_ranks";
      for (char& c : name)
        if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
      return name;
    });

}  // namespace
}  // namespace gradsieve::test
