// SPDX-License-Identifier: Apache-2.0
#include "bench/micro/index_bench.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gradsieve/vocabulary.hpp"

#include "core/philox.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::bench {

IndexBench::IndexBench(std::uint64_t universe, double density) : universe_(universe) {
  PhiloxKey const key = philox_key(3, 7, Purpose::select, 0);
  auto const bound = static_cast<std::uint32_t>(density * 4294967296.0);
  for (std::uint64_t i = 0; i < universe; ++i) {
    if (philox(key, i / 4, 0)[i % 4] < bound) indices_.push_back(static_cast<std::uint32_t>(i));
  }
  if (indices_.empty()) indices_.push_back(0);
  decoded_.resize(indices_.size());
  code_ = Buffer(kernels::elias_fano_bytes(universe, indices_.size()), host_memory());
  encode().run();
}

PairedRounds::Work IndexBench::copy() {
  return {nullptr, [this] { std::memcpy(decoded_.data(), indices_.data(), 4 * indices_.size()); }};
}

PairedRounds::Work IndexBench::encode() {
  return {nullptr, [this] {
            kernels::elias_fano_encode(ExecContext{}, indices_, universe_, code_.bytes());
          }};
}

PairedRounds::Work IndexBench::decode() {
  return {nullptr, [this] {
            if (!kernels::elias_fano_decode(ExecContext{}, code_.bytes(), universe_, decoded_)) {
              throw Error(Code::internal, "Elias-Fano did not decode what it had encoded");
            }
          }};
}

double IndexBench::bits_per_index() const {
  return 8.0 * static_cast<double>(code_.num_bytes()) / static_cast<double>(indices_.size());
}

double IndexBench::entropy_ratio() const {
  double const n = static_cast<double>(universe_);
  double const k = static_cast<double>(indices_.size());
  double const nats = std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1);
  return bits_per_index() * k * std::log(2.0) / std::max(nats, 1.0);
}

}  // namespace gradsieve::bench
