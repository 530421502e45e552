// SPDX-License-Identifier: Apache-2.0
// What others offer for the same work, measured in the same run: one thread, feedback included
// where the name says so, at the density that stands in the name.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/micro/paired.hpp"

namespace gradsieve::bench {

/// One peer on buffers of its own. run() leaves the residual changed; restore() puts it back.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual void restore() = 0;
  virtual void run() = 0;
};

struct PeerKind {
  std::string name;
  std::unique_ptr<Peer> (*make)(std::span<float const> gradient, std::span<float const> residual);
};

/// std::nth_element, zstd and, where it was found, BLAS.
[[nodiscard]] std::vector<PeerKind> library_peers();
/// libtorch's operators; none where it was left out.
[[nodiscard]] std::vector<PeerKind> torch_peers();
[[nodiscard]] std::string torch_version();

}  // namespace gradsieve::bench
