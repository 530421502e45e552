// SPDX-License-Identifier: Apache-2.0
// Exact top-k in one pass over the gradient. A small sample gives three borders, which enclose the
// k-th largest magnitude: the pass writes c, with zeros from the middle border on, and collects the
// elements above the low one. The cut is then found among the few between low and high, and what
// the pass zeroed wrongly is put right. If the sample misled, the same is done by counting all of
// c. Which of the two it is, only the device knows: launches that are not needed leave early.
//
// Elements are ordered by magnitude and then by index, so ties (even a gradient of zeros) have a
// border as well. Places in the list of candidates depend on the order of blocks; the result does
// not.
#include "core/philox.hpp"
#include "kernels/cuda/corrected_tile.cuh"
#include "kernels/cuda/select.cuh"
#include "kernels/ops.hpp"
#include "kernels/select_layout.hpp"

namespace gradsieve::kernels::cuda {
namespace {

struct BorderPolicy {
  static constexpr unsigned threads = 1024, items_per_thread = 2, min_blocks = 1;
};

// 34 KB of shared memory a block. Two of them have 64 KB of loads on their way, which is plenty.
struct CollectPolicy {
  static constexpr unsigned threads = TilePolicy::threads, min_blocks = 2;
};

constexpr unsigned kItems = TilePolicy::items_per_thread;
constexpr std::uint32_t kAboveAll = 0x80000000U;
static_assert(kSelectTile == kTileElements && kSelectTile == kItemsPerTile);
static_assert(sizeof(SelectTile) == kTileRecordBytes);

/// The elements with a magnitude above this one, or equal to it and an index up to `last_index`.
/// Rounded up to whole tiles, so that it is one threshold per tile.
struct Border {
  std::uint32_t magnitude;
  std::uint64_t last_index;

  [[nodiscard]] __device__ std::uint32_t threshold(std::uint64_t tile) const {
    return magnitude + (tile * kSelectTile > last_index ? 1 : 0);
  }
};

struct TopkState {
  Cut<std::uint32_t> cut;
  Border low;
  Border middle;
  Border high;
  std::uint64_t k;
  unsigned long long num_candidates;
  unsigned long long num_sure;
  std::uint32_t is_full;     ///< candidates ran out of room
  std::uint32_t is_sampled;  ///< borders mean something
  std::uint32_t is_exact;    ///< all of c is searched
  std::uint32_t ticket;
};
static_assert(sizeof(TopkState) <= kStateBytes);

// --- the sample ----------------------------------------------------------------------------------

/// Element j of the sample, one in each of num_samples equal strata: hashed, so that it does not
/// follow any pattern in the gradient.
__device__ std::uint64_t sample_position(std::uint64_t j, std::uint64_t num_elements,
                                         std::uint64_t num_samples) {
  std::uint64_t const start = j * num_elements / num_samples;
  std::uint64_t const size = (j + 1) * num_elements / num_samples - start;
  return start + ((mix64(j) >> 32) * size >> 32);
}

/// The border that exactly `rank` of the sample reach. Found bit by bit, from the top.
__device__ Border border_at(std::uint64_t const (&keys)[BorderPolicy::items_per_thread],
                            std::uint64_t rank, std::uint64_t num_samples) {
  if (rank == 0) return {kAboveAll, ~std::uint64_t{0}};
  if (rank > num_samples) return {0, ~std::uint64_t{0}};
  std::uint64_t least = 0;
  for (std::uint64_t bit = std::uint64_t{1} << 62; bit != 0; bit >>= 1) {
    std::uint64_t const trial = least | bit;
    std::uint64_t count = 0;
#pragma unroll
    for (unsigned i = 0; i < BorderPolicy::items_per_thread; ++i) {
      count += static_cast<unsigned>(__syncthreads_count(keys[i] >= trial ? 1 : 0));
    }
    if (count >= rank) least = trial;
    if (count == rank) break;  // all threads see the same count
  }
  return {static_cast<std::uint32_t>(least >> 32),
          std::uint64_t{0xffffffffU - static_cast<std::uint32_t>(least)}};
}

template <typename T>
__global__ void __launch_bounds__(BorderPolicy::threads, BorderPolicy::min_blocks)
    border_kernel(CorrectedTile<T> source, std::uint64_t num_elements, std::uint64_t num_samples,
                  StepValue<std::uint64_t> num_chosen, TopkState* state) {
  source.begin();
  std::uint64_t const k = min(num_chosen.get(), num_elements);
  bool const is_sampled = num_samples != 0 && k != 0 && k != num_elements;
  Border low = {kAboveAll, ~std::uint64_t{0}};
  Border middle = low;
  Border high = low;
  if (is_sampled) {
    std::uint64_t keys[BorderPolicy::items_per_thread] = {};
#pragma unroll
    for (unsigned i = 0; i < BorderPolicy::items_per_thread; ++i) {
      std::uint64_t const j = threadIdx.x + i * BorderPolicy::threads;
      if (j >= num_samples) continue;
      std::uint64_t const at = sample_position(j, num_elements, num_samples);
      keys[i] = static_cast<std::uint64_t>(magnitude_of(source.at(at))) << 32 |
                (0xffffffffU - static_cast<std::uint32_t>(at));
    }
    double const density = sample_density(k, num_elements);
    double const expected = static_cast<double>(num_samples) * density;
    // Four standard deviations, and a little, because the distribution is skewed when they are few.
    double const margin = 4 * sqrt(expected * (1 - density)) + 3;
    high = border_at(keys, static_cast<std::uint64_t>(fmax(0.0, expected - margin)), num_samples);
    middle = border_at(keys, static_cast<std::uint64_t>(expected + 0.5), num_samples);
    low = border_at(keys, static_cast<std::uint64_t>(expected + margin) + 1, num_samples);
  }
  if (threadIdx.x != 0) return;
  *state = {};
  state->k = k;
  state->low = low;
  state->middle = middle;
  state->high = high;
  state->is_sampled = is_sampled ? 1 : 0;
}

// --- the pass ------------------------------------------------------------------------------------

struct Candidates {
  std::uint32_t* indices;
  float* values;
  std::uint64_t capacity;
};

/// The candidates of a tile in the order of their indices: an exclusive scan over the threads of
/// how many each has in its four quads, 16 bits for each of them.
struct TileRanks {
  std::uint32_t first_of[kItems];  ///< of the thread's first candidate in each of its quads
  std::uint32_t total;

  __device__ explicit TileRanks(std::uint64_t packed_counts) {
    std::uint64_t totals;
    std::uint64_t const before = scan_block<TilePolicy::threads>(packed_counts, totals);
    total = 0;
#pragma unroll
    for (unsigned item = 0; item < kItems; ++item) {
      first_of[item] = total + static_cast<std::uint32_t>(before >> (16 * item) & 0xffffU);
      total += static_cast<std::uint32_t>(totals >> (16 * item) & 0xffffU);
    }
  }
};

/// The last block: whether the borders enclose the cut.
__device__ void judge_borders(TopkState& state) {
  if (threadIdx.x != 0) return;
  std::uint64_t const num_candidates = __ldcg(&state.num_candidates);
  std::uint64_t const num_sure = __ldcg(&state.num_sure);
  std::uint64_t const k = state.k;
  bool const they_hold =
      state.is_sampled != 0 && __ldcg(&state.is_full) == 0 && num_candidates >= k && num_sure <= k;
  state.is_exact = they_hold ? 0 : 1;
  state.cut.key = they_hold ? state.low.magnitude : 0;
  state.cut.high = they_hold ? min(state.high.magnitude, kAboveAll - 1) : kAboveAll - 1;
  state.cut.num_left = they_hold ? k - num_sure : k;
  if (state.cut.num_left == 0) state.cut = {kAboveAll - 1, kAboveAll - 1, 0, 1, 0};
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(CollectPolicy::threads, CollectPolicy::min_blocks)
    collect_kernel(CorrectedTile<T> source, std::uint64_t num_elements, Candidates candidates,
                   TopkState* state, SelectTile* tiles, StepWords* words) {
  __shared__ std::uint32_t kept_indices[kSelectTile];
  __shared__ float kept_values[kSelectTile];
  __shared__ unsigned long long place;
  source.begin();
  bool non_finite = false;
  std::uint64_t const num_tiles = divide_up(num_elements, kSelectTile);
  for (std::uint64_t tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
    std::uint64_t const begin = tile * kSelectTile;
    auto const size = static_cast<unsigned>(min(num_elements - begin, std::uint64_t{kSelectTile}));
    std::uint32_t const keep_from = state->low.threshold(tile);
    std::uint32_t const zero_from = state->middle.threshold(tile);
    std::uint32_t const sure_from = state->high.threshold(tile);
    Pack<float, 4> c[kItems];
    source.template read<kAligned>(begin, size, c, non_finite);
    std::uint64_t packed_counts = 0;
    std::uint64_t num_sure = 0;
#pragma unroll
    for (unsigned item = 0; item < kItems; ++item) {
      QuadPlace const at(item, size);
#pragma unroll
      for (unsigned lane = 0; lane < 4; ++lane) {
        std::uint32_t const magnitude = magnitude_of(c[item].at[lane]);
        bool const exists = lane < at.count;
        packed_counts += std::uint64_t{exists && magnitude >= keep_from ? 1U : 0U} << (16 * item);
        num_sure += exists && magnitude >= sure_from ? 1U : 0U;
      }
    }
    TileRanks const ranks(packed_counts);
    std::uint64_t all_sure = 0;
    if (ranks.total != 0) static_cast<void>(scan_block<TilePolicy::threads>(num_sure, all_sure));
    if (threadIdx.x == 0) place = 0;
    if (threadIdx.x == 0 && ranks.total != 0) {
      place = atomicAdd(&state->num_candidates, static_cast<unsigned long long>(ranks.total));
      bool const fits = place + ranks.total <= candidates.capacity;
      if (fits && all_sure != 0) {
        atomicAdd(&state->num_sure, static_cast<unsigned long long>(all_sure));
      }
      if (!fits) atomicOr(&state->is_full, 1U);
    }
    __syncthreads();
    std::uint64_t const own_place = place;
    bool const is_kept = ranks.total != 0 && own_place + ranks.total <= candidates.capacity;
    if (threadIdx.x == 0) {
      SelectTile record = {};
      record.first = is_kept ? own_place : 0;
      record.count = is_kept ? ranks.total : 0;
      tiles[tile] = record;
    }
#pragma unroll
    for (unsigned item = 0; item < kItems; ++item) {
      QuadPlace const at(item, size);
      std::uint32_t rank = ranks.first_of[item];
      Pack<float, 4> left = c[item];
#pragma unroll
      for (unsigned lane = 0; lane < 4; ++lane) {
        std::uint32_t const magnitude = magnitude_of(c[item].at[lane]);
        if (!is_kept || lane >= at.count || magnitude < keep_from) continue;
        kept_indices[rank] = static_cast<std::uint32_t>(begin + at.first + lane);
        kept_values[rank] = c[item].at[lane];
        ++rank;
        if (magnitude >= zero_from) left.at[lane] = 0.0F;
      }
      store_quad<kAligned>(source.residual_out + begin + at.first, left, at.count);
    }
    __syncthreads();
    if (is_kept) {
      for (unsigned i = threadIdx.x; i < ranks.total; i += TilePolicy::threads) {
        candidates.indices[own_place + i] = kept_indices[i];
        candidates.values[own_place + i] = kept_values[i];
      }
    }
  }
  raise(words, kStepNonFinite, non_finite);
  if (is_last_block(&state->ticket)) judge_borders(*state);
}

// --- the cut -------------------------------------------------------------------------------------

/// The candidates, or all of c, as the state says.
struct TopkSource {
  using Key = std::uint32_t;
  struct Item {
    Key key;
    std::uint32_t index;
    float value;
    bool is_sure;
    bool is_zeroed;
  };

  TopkState const* state;
  Candidates candidates;
  SelectTile const* tiles;
  float const* c;
  std::uint64_t num_elements;

  [[nodiscard]] __device__ bool is_exact() const { return state->is_exact != 0; }
  [[nodiscard]] __device__ std::uint64_t size() const {
    return is_exact() ? num_elements : state->num_candidates;
  }
  [[nodiscard]] __device__ Key key_at(std::uint64_t i) const {
    if (is_exact()) return magnitude_of(c[i]);
    Key const key = magnitude_of(candidates.values[i]);
    Border const high = state->high;
    if (key != high.magnitude) return key;  // beyond the cut's range if it is above
    bool const is_sure = key >= high.threshold(candidates.indices[i] / kSelectTile);
    return is_sure ? kAboveAll : key;
  }
  [[nodiscard]] __device__ bool has_work(std::uint64_t tile, SelectTile const& record) const {
    static_cast<void>(tile);
    return is_exact() ? record.num_above + record.num_taken != 0 : record.count != 0;
  }
  [[nodiscard]] __device__ std::uint32_t num_items(std::uint64_t tile) const {
    if (!is_exact()) return tiles[tile].count;
    return static_cast<std::uint32_t>(
        min(num_elements - tile * kSelectTile, std::uint64_t{kSelectTile}));
  }
  [[nodiscard]] __device__ Item item(std::uint64_t tile, std::uint32_t i) const {
    if (is_exact()) {
      std::uint64_t const index = tile * kSelectTile + i;
      float const value = c[index];
      return {magnitude_of(value), static_cast<std::uint32_t>(index), value, false, false};
    }
    std::uint64_t const at = tiles[tile].first + i;
    float const value = candidates.values[at];
    Key const key = magnitude_of(value);
    return {key, candidates.indices[at], value, key >= state->high.threshold(tile),
            key >= state->middle.threshold(tile)};
  }
};

/// The pass zeroed what is not known to be chosen any more: before all of c is searched, it is put
/// back.
__global__ void __launch_bounds__(SelectPolicy::threads, SelectPolicy::min_blocks)
    restore_kernel(TopkSource source, float* c, std::uint64_t num_tiles) {
  if (!source.is_exact() || source.state->is_sampled == 0) return;
  for (std::uint64_t tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
    SelectTile const record = source.tiles[tile];
    std::uint32_t const zero_from = source.state->middle.threshold(tile);
    for (std::uint32_t i = threadIdx.x; i < record.count; i += SelectPolicy::threads) {
      float const value = source.candidates.values[record.first + i];
      if (magnitude_of(value) < zero_from) continue;
      c[source.candidates.indices[record.first + i]] = value;
    }
  }
}

struct TopkWriter {
  std::uint32_t* indices;
  float* values;
  float* residual;

  __device__ void write(TopkSource::Item const& item, std::uint64_t place) const {
    indices[place] = item.index;
    values[place] = item.value;
    if (!item.is_zeroed) residual[item.index] = 0.0F;
  }
  __device__ void leave(TopkSource::Item const& item) const {
    if (item.is_zeroed) residual[item.index] = item.value;
  }
};

}  // namespace

// A workspace that is missing or too small is a mistake of planning: nothing is then chosen, which
// loses nothing, and the failure is kept.
Flags topk(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
           StepValue<std::uint64_t> k, SparseView& selection) noexcept {
  std::uint64_t const n = gradient.num_elements;
  std::uint64_t const most = k.at == nullptr ? k.value : selection.indices.size();
  selection.num_indices = most;
  selection.num_values = most;
  selection.granularity = 1;
  selection.num_overflowed = 0;
  std::uint64_t const num_tiles = num_tiles_of(n);
  WorkspaceScope const scope(*ctx.workspace);
  Workspace& workspace = *ctx.workspace;
  auto* const state = reinterpret_cast<TopkState*>(workspace.take<std::byte>(kStateBytes).data());
  std::span<std::uint32_t> const counts = workspace.take<std::uint32_t>(kNumBuckets);
  std::span<SelectTile> const tiles = workspace.take<SelectTile>(num_tiles);
  std::uint64_t const capacity = topk_capacity(n, most);
  std::span<std::uint32_t> const indices = workspace.take<std::uint32_t>(capacity);
  std::span<float> const values = workspace.take<float>(capacity);
  if (state == nullptr || counts.empty() || tiles.size() != num_tiles ||
      values.size() != capacity) {
    keep_failure(ctx, kWorkspaceTooSmall);
    return 0;
  }
  Candidates const candidates = {indices.data(), values.data(), capacity};
  float* const c = residual.out.data();
  TopkSource const source = {state, candidates, tiles.data(), c, n};

  fill(ctx, counts.data(), 0, counts.size_bytes());
  with_corrected(gradient, residual, [&]<typename T>(CorrectedTile<T> const& corrected) {
    launch(ctx, 1, BorderPolicy::threads, 0, border_kernel<T>, corrected, n, num_topk_samples(n), k,
           state);
    auto* const collect =
        corrected.is_aligned() ? collect_kernel<true, T> : collect_kernel<false, T>;
    launch(ctx, grid_of(num_tiles), CollectPolicy::threads, 0, collect, corrected, n, candidates,
           state, tiles.data(), ctx.words);
  });
  launch(ctx, grid_of(num_tiles), SelectPolicy::threads, 0, restore_kernel, source, c, num_tiles);
  refine_cut(ctx, source, n, &state->cut, counts.data());
  launch(ctx, grid_of_tiles(num_tiles), SelectPolicy::threads, 0, count_tiles_kernel<TopkSource>,
         source, &state->cut, tiles.data(), num_tiles);
  launch(ctx, 1, ScanPolicy::threads, 0, place_tiles_kernel<std::uint32_t>, &state->cut,
         tiles.data(), num_tiles, std::uint64_t{selection.indices.size()}, selection.counts);
  TopkWriter const writer = {selection.indices.data(), selection.values.data(), c};
  launch(ctx, grid_of_tiles(num_tiles), SelectPolicy::threads, 0,
         place_kernel<TopkSource, TopkWriter>, source, writer, &state->cut, tiles.data(), num_tiles,
         std::uint64_t{selection.indices.size()});
  return 0;
}

}  // namespace gradsieve::kernels::cuda
