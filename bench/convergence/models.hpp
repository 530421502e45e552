// SPDX-License-Identifier: Apache-2.0
// The three models of the studies, in torch's public C++ API (1.13 and 2.x).
#pragma once

#include <cstdint>
#include <memory>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "bench/convergence/study.hpp"

namespace gradsieve::study {

/// A module with one input and logits as its output.
class Network : public torch::nn::Module {
 public:
  /// Images [n, 784] to [n, classes], or characters [n, context] to [n * context, classes].
  virtual torch::Tensor forward(torch::Tensor input) = 0;
};

[[nodiscard]] std::shared_ptr<Network> make_network(ModelKind model, std::int64_t num_classes);

}  // namespace gradsieve::study
