// SPDX-License-Identifier: Apache-2.0
// Exchanges for given indices and values: embedding gradients, outside sparsifiers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gradsieve/transport.hpp"

namespace gradsieve {

/// Indices into a flat space of `num_elements` (64-bit), in any order, repeats allowed.
struct SparseInput {
  std::uint64_t num_elements = 0;
  std::span<std::uint64_t const> indices;
  std::span<float const> values;
};

/// Unique ascending indices and their values.
struct SparseResult {
  std::vector<std::uint64_t> indices;
  std::vector<float> values;
  bool dense = false;  ///< it was cheaper to send all elements: indices are then 0 … n−1
};

struct SparseExchangeOptions {
  std::chrono::milliseconds deadline{30'000};
  std::uint32_t tag = 0;
  std::string* failure = nullptr;  ///< on failure: a sentence that names ranks and sizes
};

/// Product of the sizes of a tensor; throws Error(invalid_argument) beyond 2^63 − 1, where a flat
/// index would no longer fit.
[[nodiscard]] std::uint64_t flat_num_elements(std::span<std::uint64_t const> sizes);

/// All ranks' pairs, each rank's repeats combined before sending, one list per rank.
/// Ranks may bring different numbers of pairs, none included. Peak extra memory is about the sum
/// of the real payloads. Allocates.
Status sparse_all_gather(Transport& transport, SparseInput const& input,
                         std::vector<SparseResult>& per_rank,
                         SparseExchangeOptions const& options = {});

/// Σ over ranks of value·weight at each index, added in rank order in f32. Ranks agree on a dense
/// exchange when the pairs would take more bytes (8 per pair against 4 per element).
Status sparse_all_reduce(Transport& transport, SparseInput const& input, float weight,
                         SparseResult& result, SparseExchangeOptions const& options = {});

}  // namespace gradsieve
