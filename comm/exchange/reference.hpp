// SPDX-License-Identifier: Apache-2.0
// What each exchange equals, written down as code: all ranks in one process, no transport. Slow and
// obvious; tests compare the real exchanges with it, bit for bit. Allocates.
#pragma once

#include <span>

#include "gradsieve/compressor.hpp"

namespace gradsieve::exchange {

/// One rank's share of a step. Its residual (`residual.out`) and its state are updated as the hook
/// would do it.
struct ReferenceRank {
  ExecContext const* ctx = nullptr;  ///< rank, world_size, seed, words
  ConstTensorView gradient;
  ResidualView residual;
  StateView state;
};

struct ReferenceStep {
  Compressor const* compressor = nullptr;
  TensorInfo piece;
  double weight = 1.0;  ///< of each rank's decoded values: 1 / world_size for a mean
  std::span<ReferenceRank const> ranks;
};

/// result ← Σ_r weight·decode(body_r), from +0, in rank order. Rounds before the last may agree on
/// something (absorb) by a gather or a sum.
Status reference_gather(ReferenceStep const& step, TensorView result);

/// Per shard s = shard_range(n, block_elements, P, owner):
///
///   sum_s = Σ_r weight·decode(encode_r(g_r on s));   result on s ← decode(encode_owned(sum_s))
///
/// with weight 1 in the last decode. undelivered[owner] (empty, or one [n] array) ← sum_s − what
/// was delivered, as the owner's compressor reports it, in units of the sum; 0 outside its shard.
Status reference_two_shot(ReferenceStep const& step, TensorView result,
                          std::span<std::span<float> const> undelivered);

/// The bodies of the last round are arrays; body = Σ_r body_r in rank order, result ←
/// weight·decode(body).
Status reference_all_reduce(ReferenceStep const& step, TensorView result);

}  // namespace gradsieve::exchange
