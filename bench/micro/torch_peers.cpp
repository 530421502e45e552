// SPDX-License-Identifier: Apache-2.0
// The same work written with libtorch's operators, as a hook in Python would call them.
#include <torch/torch.h>

#include "bench/micro/peers.hpp"

namespace gradsieve::bench {
namespace {

class TorchPeer : public Peer {
 public:
  TorchPeer(std::span<float const> gradient, std::span<float const> residual)
      : gradient_(tensor_of(gradient)), saved_(tensor_of(residual)), residual_(saved_.clone()) {
    torch::set_num_threads(1);
  }
  void restore() override { residual_.copy_(saved_); }

 protected:
  torch::Tensor gradient_, saved_, residual_;

 private:
  static torch::Tensor tensor_of(std::span<float const> values) {
    return torch::from_blob(const_cast<float*>(values.data()),
                            {static_cast<std::int64_t>(values.size())})
        .clone();
  }
};

class TorchTopk final : public TorchPeer {
 public:
  using TorchPeer::TorchPeer;
  void run() override {
    torch::NoGradGuard const guard;
    residual_.add_(gradient_);
    auto const k = std::max<std::int64_t>(residual_.numel() / 100, 1);
    torch::Tensor const indices = std::get<1>(residual_.abs().topk(k, 0, true, false));
    values_ = residual_.index_select(0, indices);
    residual_.index_fill_(0, indices, 0);
  }

 private:
  torch::Tensor values_;
};

class TorchInt8 final : public TorchPeer {
 public:
  using TorchPeer::TorchPeer;
  void run() override {
    torch::NoGradGuard const guard;
    residual_.add_(gradient_);
    double const scale = residual_.abs().max().item<double>() / 127.0;
    codes_ = torch::quantize_per_tensor(residual_, scale, 0, torch::kQInt8);
    residual_.sub_(codes_.dequantize());
  }

 private:
  torch::Tensor codes_;
};

template <typename Kind>
std::unique_ptr<Peer> make(std::span<float const> gradient, std::span<float const> residual) {
  return std::make_unique<Kind>(gradient, residual);
}

}  // namespace

std::vector<PeerKind> torch_peers() {
  return {{"torch_topk_feedback(density=0.01)", make<TorchTopk>},
          {"torch_int8_per_tensor_feedback", make<TorchInt8>}};
}

std::string torch_version() { return TORCH_VERSION; }

}  // namespace gradsieve::bench
