// SPDX-License-Identifier: Apache-2.0
// Indexed reads and writes, one thread an element. Indices that a peer wrote are checked by
// check_indices(), whose answer the host does not wait for: here they never lead out of bounds.
#include "kernels/cuda/block_scales.cuh"
#include "kernels/cuda/stream.cuh"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

struct IndexedPolicy {
  static constexpr unsigned threads = 256, items_per_thread = 4, min_blocks = 4;
};

/// The selected elements by the position of their value.
struct Selected : SeesNothing {
  std::uint32_t const* indices;
  std::uint64_t const* count;  ///< null: all of `room`
  std::uint64_t room;
  std::uint64_t granularity;
  Divisor position_to_index;
  std::uint64_t num_elements;

  Selected(IndexSpan set, std::uint64_t elements_per_index, std::uint64_t universe) noexcept
      : indices(set.room.data()),
        count(set.count),
        room(set.room.size()),
        granularity(elements_per_index),
        position_to_index(elements_per_index),
        num_elements(universe) {}

  __device__ void begin() {
    if (count != nullptr) room = min(room, *count);
  }
  /// Beyond num_elements: there is no such element.
  [[nodiscard]] __device__ std::uint64_t element(std::uint64_t position) const {
    std::uint64_t const j = position_to_index.quotient(position);
    if (j >= room) return num_elements;
    return indices[j] * granularity + (position - j * granularity);
  }
  [[nodiscard]] std::uint64_t num_positions() const noexcept { return room * granularity; }
};

struct Indexed {
  std::uint64_t element;
  float value;
  float at_element;
};

struct Take : Selected {
  float* x;
  float* values;

  template <int kWidth>
  __device__ Indexed load(std::uint64_t position) const {
    std::uint64_t const i = element(position);
    return {i, 0, i < num_elements ? x[i] : 0.0F};
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t position, Indexed const& taken, bool&) const {
    if (taken.element >= num_elements) return;
    values[position] = taken.at_element;
    x[taken.element] = 0.0F;
  }
};

struct ScatterAdd : Selected {
  float const* values;
  float* accumulator;
  float weight;

  template <int kWidth>
  __device__ Indexed load(std::uint64_t position) const {
    std::uint64_t const i = element(position);
    if (i >= num_elements) return {i, 0, 0};
    return {i, values[position], accumulator[i]};
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t, Indexed const& pair, bool&) const {
    if (pair.element >= num_elements) return;
    float const product = weight * pair.value;
    accumulator[pair.element] = canonical(pair.at_element + product);
  }
};

struct CheckIndices {
  std::uint32_t const* indices;
  std::uint64_t const* count;
  std::uint64_t room;
  std::uint64_t universe;
  StepWords* words;

  struct Pair {
    std::uint64_t index;
    std::uint64_t next;
  };
  __device__ void begin() {
    // A count that does not fit its room is as wrong as an index: all of the room is looked at.
    if (count != nullptr && *count <= room) room = *count;
  }
  template <int kWidth>
  __device__ Pair load(std::uint64_t j) const {
    if (j >= room) return {0, 1};
    return {indices[j], j + 1 < room ? indices[j + 1] : universe};
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t, Pair const& pair, bool& is_wrong) const {
    is_wrong = is_wrong || pair.index >= pair.next;
  }
  __device__ void end(bool is_wrong) const {
    bool const is_too_many = count != nullptr && *count > room;
    raise(words, kStepCorrupt, is_wrong || is_too_many);
  }
};

}  // namespace

void take(ExecContext const& ctx, IndexSpan indices, std::uint64_t granularity, std::span<float> x,
          std::span<float> values) noexcept {
  Selected const selected(indices, granularity, x.size());
  stream_singly<IndexedPolicy>(ctx, Take{selected, x.data(), values.data()},
                               std::min<std::uint64_t>(selected.num_positions(), values.size()));
}

void scatter_add(ExecContext const& ctx, IndexSpan indices, std::uint64_t granularity,
                 std::span<float const> values, float weight,
                 std::span<float> accumulator) noexcept {
  Selected const selected(indices, granularity, accumulator.size());
  stream_singly<IndexedPolicy>(ctx, ScatterAdd{selected, values.data(), accumulator.data(), weight},
                               std::min<std::uint64_t>(selected.num_positions(), values.size()));
}

bool check_indices(ExecContext const& ctx, IndexSpan indices, std::uint64_t universe) noexcept {
  stream_singly<IndexedPolicy>(
      ctx,
      CheckIndices{indices.room.data(), indices.count, indices.room.size(), universe, ctx.words},
      indices.room.size());
  return true;
}

}  // namespace gradsieve::kernels::cuda
