// SPDX-License-Identifier: Apache-2.0
#include "bench/convergence/models.hpp"

#include <cmath>
#include <string>
#include <vector>

#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "bench/convergence/datasets.hpp"

namespace gradsieve::study {
namespace {

namespace nn = torch::nn;

// 784-1024-1024-10: 1.86 million parameters, nearly all in two matrices.
class Mlp final : public Network {
 public:
  explicit Mlp(std::int64_t num_classes)
      : fc1_(register_module("fc1", nn::Linear(std::int64_t{kImagePixels}, 1024))),
        fc2_(register_module("fc2", nn::Linear(1024, 1024))),
        fc3_(register_module("fc3", nn::Linear(1024, num_classes))) {}

  torch::Tensor forward(torch::Tensor x) override {
    x = torch::relu(fc1_(x));
    x = torch::relu(fc2_(x));
    return fc3_(x);
  }

 private:
  nn::Linear fc1_, fc2_, fc3_;
};

// Strides instead of pooling: half the work, and two of four tensors are small filters.
class Cnn final : public Network {
 public:
  explicit Cnn(std::int64_t num_classes)
      : conv1_(
            register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 16, 5).stride(2).padding(2)))),
        conv2_(register_module("conv2",
                               nn::Conv2d(nn::Conv2dOptions(16, 32, 5).stride(2).padding(2)))),
        fc1_(register_module("fc1", nn::Linear(32 * 7 * 7, 128))),
        fc2_(register_module("fc2", nn::Linear(128, num_classes))) {}

  torch::Tensor forward(torch::Tensor x) override {
    x = x.view({-1, 1, 28, 28});
    x = torch::relu(conv1_(x));
    x = torch::relu(conv2_(x));
    x = torch::relu(fc1_(x.flatten(1)));
    return fc2_(x);
  }

 private:
  nn::Conv2d conv1_, conv2_;
  nn::Linear fc1_, fc2_;
};

constexpr std::int64_t kWidth = 128;
constexpr std::int64_t kNumHeads = 4;
constexpr int kNumLayers = 2;

// Attention and a perceptron, each on a normalised copy of the stream (pre-norm), which trains
// without a warm-up of the learning rate.
class TransformerLayer final : public nn::Module {
 public:
  TransformerLayer()
      : norm1_(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        qkv_(register_module("qkv", nn::Linear(kWidth, 3 * kWidth))),
        proj_(register_module("proj", nn::Linear(kWidth, kWidth))),
        norm2_(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        up_(register_module("up", nn::Linear(kWidth, 4 * kWidth))),
        down_(register_module("down", nn::Linear(4 * kWidth, kWidth))) {}

  torch::Tensor forward(torch::Tensor x, torch::Tensor const& future) {
    x = x + attend(norm1_(x), future);
    return x + down_(torch::gelu(up_(norm2_(x))));
  }

 private:
  torch::Tensor attend(torch::Tensor const& x, torch::Tensor const& future) {
    std::int64_t const num_examples = x.size(0);
    std::int64_t const num_tokens = x.size(1);
    auto const parts = qkv_(x)
                           .view({num_examples, num_tokens, 3, kNumHeads, kWidth / kNumHeads})
                           .permute({2, 0, 3, 1, 4});
    double const scale = 1.0 / std::sqrt(static_cast<double>(kWidth / kNumHeads));
    auto scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) * scale;
    scores = scores.masked_fill(future, -1e9);
    auto const mixed = torch::matmul(torch::softmax(scores, -1), parts[2]);
    return proj_(mixed.permute({0, 2, 1, 3}).reshape({num_examples, num_tokens, kWidth}));
  }

  nn::LayerNorm norm1_;
  nn::Linear qkv_, proj_;
  nn::LayerNorm norm2_;
  nn::Linear up_, down_;
};

// A character language model of 0.42 million parameters.
class Transformer final : public Network {
 public:
  explicit Transformer(std::int64_t num_classes)
      : token_(register_module("token", nn::Embedding(num_classes, kWidth))),
        position_(
            register_parameter("position", torch::zeros({std::int64_t{kContextTokens}, kWidth}))) {
    for (int i = 0; i < kNumLayers; ++i) {
      layers_.push_back(
          register_module("layer" + std::to_string(i), std::make_shared<TransformerLayer>()));
    }
    norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    head_ = register_module("head", nn::Linear(kWidth, num_classes));
    torch::NoGradGuard const no_gradient;
    // torch draws embeddings from N(0, 1), which drowns what the first steps learn.
    token_->weight.mul_(0.02);
    position_.normal_(0.0, 0.02);
    std::int64_t const n{kContextTokens};
    future_ = torch::ones({n, n}, torch::kBool).triu(1);
  }

  torch::Tensor forward(torch::Tensor tokens) override {
    auto x = token_(tokens) + position_;
    for (auto& layer : layers_) x = layer->forward(x, future_);
    return head_(norm_(x)).flatten(0, 1);
  }

 private:
  nn::Embedding token_;
  torch::Tensor position_;
  torch::Tensor future_;
  std::vector<std::shared_ptr<TransformerLayer>> layers_;
  nn::LayerNorm norm_{nullptr};
  nn::Linear head_{nullptr};
};

}  // namespace

std::shared_ptr<Network> make_network(ModelKind model, std::int64_t num_classes) {
  switch (model) {
    case ModelKind::cnn:
      return std::make_shared<Cnn>(num_classes);
    case ModelKind::transformer:
      return std::make_shared<Transformer>(num_classes);
    case ModelKind::mlp:
      break;
  }
  return std::make_shared<Mlp>(num_classes);
}

}  // namespace gradsieve::study
