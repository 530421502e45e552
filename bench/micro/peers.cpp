// SPDX-License-Identifier: Apache-2.0
#include "bench/micro/peers.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include <zstd.h>

#ifdef GRADSIEVE_HAVE_CBLAS
#include <cblas.h>
#endif

#include "gradsieve/memory.hpp"

namespace gradsieve::bench {
namespace {

/// Gradient and residual on pages like our own.
class BufferedPeer : public Peer {
 public:
  BufferedPeer(std::span<float const> gradient, std::span<float const> residual)
      : saved_(residual.begin(), residual.end()),
        gradient_(gradient.size_bytes(), host_memory()),
        residual_(gradient.size_bytes(), host_memory()) {
    std::memcpy(gradient_.data(), gradient.data(), gradient.size_bytes());
  }
  void restore() override { std::memcpy(residual_.data(), saved_.data(), residual_.num_bytes()); }

 protected:
  [[nodiscard]] std::span<float const> gradient() const { return gradient_.as<float const>(); }
  [[nodiscard]] std::span<float> residual() const { return residual_.as<float>(); }

 private:
  std::vector<float> saved_;
  Buffer gradient_, residual_;
};

/// The usual three passes: add, select on a copy of the magnitudes, scan.
class NthElementTopk final : public BufferedPeer {
 public:
  NthElementTopk(std::span<float const> gradient, std::span<float const> residual)
      : BufferedPeer(gradient, residual), copy_(gradient.size_bytes(), host_memory()) {
    indices_.reserve(gradient.size());
    values_.reserve(gradient.size());
  }

  void run() override {
    std::span<float> const r = residual();
    std::span<float> const magnitudes = copy_.as<float>();
    std::size_t const k = std::max<std::size_t>(r.size() / 100, 1);
    for (std::size_t i = 0; i < r.size(); ++i) {
      r[i] += gradient()[i];
      magnitudes[i] = std::fabs(r[i]);
    }
    std::nth_element(magnitudes.begin(), magnitudes.begin() + static_cast<std::ptrdiff_t>(k - 1),
                     magnitudes.end(), std::greater<>());
    float const threshold = magnitudes[k - 1];
    indices_.clear();
    values_.clear();
    for (std::size_t i = 0; i < r.size(); ++i) {
      if (std::fabs(r[i]) < threshold || indices_.size() == k) continue;
      indices_.push_back(static_cast<std::uint32_t>(i));
      values_.push_back(r[i]);
      r[i] = 0.0F;
    }
  }

 private:
  Buffer copy_;
  std::vector<std::uint32_t> indices_;
  std::vector<float> values_;
};

/// zstd level 1 on the floats as they are: what a general compressor makes of a gradient.
class ZstdBytes final : public BufferedPeer {
 public:
  ZstdBytes(std::span<float const> gradient, std::span<float const> residual)
      : BufferedPeer(gradient, residual), out_(ZSTD_compressBound(gradient.size_bytes())) {}
  void run() override {
    static_cast<void>(
        ZSTD_compress(out_.data(), out_.size(), gradient().data(), gradient().size_bytes(), 1));
  }

 private:
  std::vector<char> out_;
};

#ifdef GRADSIEVE_HAVE_CBLAS
/// r ← r + g by saxpy: whether `update` is as fast as it gets.
class BlasUpdate final : public BufferedPeer {
 public:
  using BufferedPeer::BufferedPeer;
  void run() override {
    cblas_saxpy(static_cast<int>(residual().size()), 1.0F, gradient().data(), 1, residual().data(),
                1);
  }
};
#endif

template <typename Kind>
std::unique_ptr<Peer> make(std::span<float const> gradient, std::span<float const> residual) {
  return std::make_unique<Kind>(gradient, residual);
}

}  // namespace

std::vector<PeerKind> library_peers() {
  std::vector<PeerKind> peers = {{"nth_element_topk_feedback(density=0.01)", make<NthElementTopk>},
                                 {"zstd(level=1)", make<ZstdBytes>}};
#ifdef GRADSIEVE_HAVE_CBLAS
  peers.push_back({"blas_saxpy", make<BlasUpdate>});
#endif
  return peers;
}

#ifndef GRADSIEVE_HAVE_TORCH
std::vector<PeerKind> torch_peers() { return {}; }
std::string torch_version() { return "none"; }
#endif

}  // namespace gradsieve::bench
