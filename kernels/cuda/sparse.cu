// SPDX-License-Identifier: Apache-2.0
// Indexed reads and writes. Indices that a peer wrote are checked by
// check_indices(), whose answer the host does not wait for: here they never lead out of bounds.
#include "kernels/cuda/block_scales.cuh"
#include "kernels/cuda/stream.cuh"
#include "kernels/cuda/tile.cuh"
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
  /// How many of the elements i ... i + kWidth − 1 exist.
  template <int kWidth>
  [[nodiscard]] __device__ unsigned count_at(std::uint64_t i) const {
    return i >= num_elements ? 0
                             : static_cast<unsigned>(min(num_elements - i, std::uint64_t{kWidth}));
  }
  [[nodiscard]] std::uint64_t num_positions() const noexcept { return room * granularity; }
  /// For stream(): elements before the first quad.
  [[nodiscard]] std::uint64_t head(float const* dense, float const* values) const noexcept {
    return granularity % kQuad == 0 && is_quad_aligned(dense) && is_quad_aligned(values)
               ? 0
               : kNeverAligned;
  }
};

/// Up to kWidth elements, `count` of which exist.
template <int kWidth>
__device__ Pack<float, kWidth> load_some(float const* from, unsigned count) {
  if constexpr (kWidth == 4) return load_quad<true>(from, count);
  return {count == 0 ? 0.0F : *from};
}
template <int kWidth>
__device__ void store_some(float* to, Pack<float, kWidth> const& pack, unsigned count) {
  if constexpr (kWidth == 4) {
    store_quad<true>(to, pack, count);
  } else if (count != 0) {
    *to = pack.at[0];
  }
}

/// What a thread holds of a pass: four elements stand together only where the granularity is a
/// multiple of four.
template <int kWidth>
struct Indexed {
  std::uint64_t element;
  Pack<float, kWidth> value;
  Pack<float, kWidth> at_element;
};

struct Take : Selected {
  float* x;
  float* values;

  template <int kWidth>
  __device__ Indexed<kWidth> load(std::uint64_t position) const {
    std::uint64_t const i = element(position);
    return {i, {}, load_some<kWidth>(x + i, count_at<kWidth>(i))};
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t position, Indexed<kWidth> const& taken, bool&) const {
    unsigned const count = count_at<kWidth>(taken.element);
    store_some<kWidth>(values + position, taken.at_element, count);
    store_some<kWidth>(x + taken.element, {}, count);
  }
};

struct ScatterAdd : Selected {
  float const* values;
  float* accumulator;
  float weight;
  std::uint32_t const* only_if;

  [[nodiscard]] __device__ bool is_left_out() const { return only_if != nullptr && *only_if == 0; }
  template <int kWidth>
  __device__ Indexed<kWidth> load(std::uint64_t position) const {
    std::uint64_t const i = element(position);
    unsigned const count = count_at<kWidth>(i);
    return {i, load_some<kWidth>(values + position, count),
            load_some<kWidth>(accumulator + i, count)};
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t, Indexed<kWidth> const& x, bool&) const {
    Pack<float, kWidth> sum;
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      float const product = weight * x.value.at[lane];
      sum.at[lane] = canonical(x.at_element.at[lane] + product);
    }
    store_some<kWidth>(accumulator + x.element, sum, count_at<kWidth>(x.element));
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
  stream<IndexedPolicy>(ctx, Take{selected, x.data(), values.data()},
                        std::min<std::uint64_t>(selected.num_positions(), values.size()),
                        selected.head(x.data(), values.data()));
}

Flags compensate_take(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                      IndexSpan indices, std::uint64_t granularity,
                      std::span<float> values) noexcept {
  Flags const flags = cuda::compensate(ctx, gradient, residual);
  cuda::take(ctx, indices, granularity, residual.out, values);
  return flags;
}

void scatter_add(ExecContext const& ctx, IndexSpan indices, std::uint64_t granularity,
                 std::span<float const> values, float weight,
                 std::span<float> accumulator) noexcept {
  Selected const selected(indices, granularity, accumulator.size());
  stream<IndexedPolicy>(
      ctx, ScatterAdd{selected, values.data(), accumulator.data(), weight, ctx.only_if},
      std::min<std::uint64_t>(selected.num_positions(), values.size()),
      selected.head(accumulator.data(), values.data()));
}

bool check_indices(ExecContext const& ctx, IndexSpan indices, std::uint64_t universe) noexcept {
  stream_singly<IndexedPolicy>(
      ctx,
      CheckIndices{indices.room.data(), indices.count, indices.room.size(), universe, ctx.words},
      indices.room.size());
  return true;
}

}  // namespace gradsieve::kernels::cuda
