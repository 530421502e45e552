// SPDX-License-Identifier: Apache-2.0
#include "bench/convergence/learner.hpp"

#include <algorithm>
#include <bit>
#include <mutex>

#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <torch/version.h>

#include "bench/convergence/models.hpp"

namespace gradsieve::study {
namespace {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(TrainingPlan const& plan,
                                                        std::vector<torch::Tensor> parameters) {
  if (plan.optimizer == OptimizerKind::adamw) {
    auto options = torch::optim::AdamWOptions(plan.learning_rate)
                       .betas({0.9, 0.98})
                       .weight_decay(plan.weight_decay);
    return std::make_unique<torch::optim::AdamW>(std::move(parameters), options);
  }
  auto options = torch::optim::SGDOptions(plan.learning_rate)
                     .momentum(plan.momentum)
                     .weight_decay(plan.weight_decay);
  return std::make_unique<torch::optim::SGD>(std::move(parameters), options);
}

// torch's generator is one for the process: rank threads take turns while they draw their
// parameters.
std::shared_ptr<Network> seeded_network(ModelKind model, std::uint64_t seed,
                                        std::uint64_t num_classes) {
  static std::mutex generator;
  std::lock_guard const lock(generator);
  torch::manual_seed(seed);
  return make_network(model, static_cast<std::int64_t>(num_classes));
}

class TorchLearner final : public Learner {
 public:
  TorchLearner(TrainingPlan const& plan, std::uint64_t seed, std::uint64_t num_classes)
      : network_(seeded_network(plan.model, seed, num_classes)) {
    for (auto const& item : network_->named_parameters()) {
      auto const rows = item.value().dim() > 1 ? item.value().size(0) : 1;
      tensors_.push_back(item.value());
      parameters_.push_back({item.key(), static_cast<std::uint64_t>(item.value().numel()),
                             static_cast<std::uint64_t>(rows)});
    }
    optimizer_ = make_optimizer(plan, tensors_);
  }

  std::vector<Parameter> const& parameters() const noexcept override { return parameters_; }

  void bind_gradients(std::vector<std::span<float>> gradients) override {
    gradients_ = std::move(gradients);
  }

  double compute_gradients(Batch const& batch) override {
    // Without a gradient to add to, backward hands over its own tensor and saves a pass.
    for (auto& tensor : tensors_) tensor.mutable_grad().reset();
    auto const loss =
        torch::nn::functional::cross_entropy(network_->forward(input_of(batch)), targets_of(batch));
    loss.backward();
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      auto bucket = bucket_view(i);
      auto const& gradient = tensors_[i].grad();
      // A parameter that the loss does not reach has no gradient; the ranks still exchange zeros.
      if (gradient.defined()) {
        bucket.copy_(gradient);
      } else {
        bucket.zero_();
      }
      // The optimizer reads the exchanged mean where it lies.
      tensors_[i].mutable_grad() = bucket;
    }
    return loss.item().toDouble();
  }

  void update(double learning_rate) override {
    for (auto& group : optimizer_->param_groups()) group.options().set_lr(learning_rate);
    optimizer_->step();
  }

  Evaluation evaluate(Batch const& batch) override {
    torch::NoGradGuard const no_gradient;
    auto const logits = network_->forward(input_of(batch));
    auto const targets = targets_of(batch);
    auto const options = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone);
    // Added in double, so that the sum does not depend on how the examples are dealt to ranks.
    auto const losses = torch::nn::functional::cross_entropy(logits, targets, options);
    Evaluation evaluation;
    evaluation.loss_sum = losses.to(torch::kDouble).sum().item().toDouble();
    evaluation.num_correct = logits.argmax(1).eq(targets).sum().item().toDouble();
    evaluation.num_examples = static_cast<double>(targets.numel());
    return evaluation;
  }

  std::uint64_t parameter_hash() const override {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (auto const& tensor : tensors_) {
      auto const values = tensor.detach().contiguous();
      std::span const elements(values.data_ptr<float>(), static_cast<std::size_t>(values.numel()));
      // FNV-1a by 32-bit words: as good at telling two models apart, and four times as fast.
      for (float const value : elements)
        hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001b3u;
    }
    return hash;
  }

 private:
  static torch::Tensor input_of(Batch const& batch) {
    auto const n = static_cast<std::int64_t>(batch.num_examples);
    if (!batch.images.empty()) {
      return torch::from_blob(const_cast<float*>(batch.images.data()),
                              {n, std::int64_t{kImagePixels}});
    }
    return torch::from_blob(const_cast<std::int64_t*>(batch.tokens.data()),
                            {n, std::int64_t{kContextTokens}}, torch::kLong);
  }

  static torch::Tensor targets_of(Batch const& batch) {
    return torch::from_blob(const_cast<std::int64_t*>(batch.targets.data()),
                            {static_cast<std::int64_t>(batch.targets.size())}, torch::kLong);
  }

  torch::Tensor bucket_view(std::size_t index) {
    return torch::from_blob(gradients_[index].data(), tensors_[index].sizes());
  }

  std::shared_ptr<Network> network_;
  std::vector<torch::Tensor> tensors_;
  std::vector<Parameter> parameters_;
  std::vector<std::span<float>> gradients_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace

std::unique_ptr<Learner> make_learner(TrainingPlan const& plan, std::uint64_t seed,
                                      std::uint64_t num_classes) {
  return std::make_unique<TorchLearner>(plan, seed, num_classes);
}

void pin_torch_to_one_thread() { torch::set_num_threads(1); }

std::string torch_version() { return TORCH_VERSION; }

}  // namespace gradsieve::study
