// SPDX-License-Identifier: Apache-2.0
// Selection by key: what top-k, threshold and block top-k share. Items stand in tiles, in the order
// of their index. The cut is a key, and how many of the items with just that key are chosen: the
// first ones. It is found by counting, a digit of the key at a time; then each tile counts what it
// gives, a scan over the tiles makes places of the counts, and each tile writes its own.
//
// Blocks meet in two ways only: integer additions, whose order leaves no trace, and a ticket that
// tells the last block of a kernel that all others have written.
#pragma once

#include <cstdint>

#include <cuda/atomic>

#include "gradsieve/selection.hpp"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/primitives/block_scan.cuh"

namespace gradsieve::kernels::cuda {

inline constexpr unsigned kSelectTile = 4096;  ///< items
inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffU;
inline constexpr unsigned kDigitBits = 11;
inline constexpr unsigned kNumBuckets = 1U << kDigitBits;

struct SelectPolicy {
  static constexpr unsigned threads = 256, items_per_thread = 1, min_blocks = 4;
};
struct ScanPolicy {
  static constexpr unsigned threads = 1024, items_per_thread = 1, min_blocks = 1;
};

struct SelectTile {
  std::uint64_t first;      ///< of its candidates, where there is a list of them
  std::uint64_t place;      ///< of what it gives, in the selection
  std::uint32_t count;      ///< of its candidates
  std::uint32_t num_above;  ///< surely chosen, or above the cut
  std::uint32_t num_ties;   ///< equal to the cut
  std::uint32_t num_taken;  ///< of the ties
};

/// Until it is found the cut lies in [key, high], and `num_left` of the items in there are chosen.
template <typename Key>
struct Cut {
  Key key;
  Key high;
  std::uint64_t num_left;  ///< in the end: of the items equal to the cut
  std::uint32_t is_found;
  std::uint32_t ticket;  ///< of the kernel that runs; 0 between kernels
};

/// True in one block, the last to call it, which then sees all that the others wrote before. All
/// threads of all blocks call it once.
///
/// The barrier puts the writes of the block in front of thread 0's addition, whose release carries
/// them on; the addition of the last block acquires those of all others (they are one release
/// sequence), and the second barrier hands that to its threads. docs/decisions/0006.
__device__ inline bool is_last_block(std::uint32_t* ticket) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    ::cuda::atomic_ref<std::uint32_t, ::cuda::thread_scope_device> const counter(*ticket);
    is_last = counter.fetch_add(1U, ::cuda::memory_order_acq_rel) == gridDim.x - 1;
    if (is_last) *ticket = 0;
  }
  __syncthreads();
  return is_last;
}

/// Bits of a key below the digit that splits [low, high].
template <typename Key>
__device__ unsigned digit_shift(Key low, Key high) {
  Key const range = high - low;
  unsigned const bits = range == 0 ? 0
                        : sizeof(Key) == 8
                            ? 64 - static_cast<unsigned>(__clzll(static_cast<long long>(range)))
                            : 32 - static_cast<unsigned>(__clz(static_cast<int>(range)));
  return bits > kDigitBits ? bits - kDigitBits : 0;
}

/// How often [0, 2^31) or [0, 2^63) has to be narrowed.
template <typename Key>
inline constexpr int kNumDigits = (8 * static_cast<int>(sizeof(Key)) - 1 + 10) / 11;

/// The last block: finds the digit in which the cut lies, from the top, and leaves the counts 0.
template <typename Key>
__device__ void narrow_cut(Cut<Key>& cut, unsigned shift, std::uint32_t* counts) {
  constexpr unsigned kPerThread = kNumBuckets / SelectPolicy::threads;
  std::uint64_t const num_left = cut.num_left;
  Key const low = cut.key;
  unsigned const top = kNumBuckets - 1 - threadIdx.x * kPerThread;  // of this thread's buckets
  std::uint32_t own[kPerThread];
  std::uint64_t sum = 0;
#pragma unroll
  for (unsigned i = 0; i < kPerThread; ++i) {
    own[i] = __ldcg(&counts[top - i]);
    counts[top - i] = 0;
    sum += own[i];
  }
  std::uint64_t total;
  std::uint64_t above = scan_block<SelectPolicy::threads>(sum, total);
  if (above >= num_left || above + sum < num_left) return;
#pragma unroll
  for (unsigned i = 0; i < kPerThread; ++i) {
    if (above < num_left && above + own[i] >= num_left) {
      cut.key = low + (static_cast<Key>(top - i) << shift);
      cut.high = cut.key + ((Key{1} << shift) - 1);
      cut.num_left = num_left - above;
      cut.is_found = shift == 0 ? 1 : 0;
    }
    above += own[i];
  }
}

/// Counts the keys in the range of the cut by their next digit, and narrows it.
///   Source: Key; size(); key_at(i): a key, or one above `cut.high` for what is decided already
template <typename Source>
__global__ void __launch_bounds__(SelectPolicy::threads, SelectPolicy::min_blocks)
    refine_kernel(Source source, Cut<typename Source::Key>* cut, std::uint32_t* counts) {
  using Key = typename Source::Key;
  if (cut->is_found != 0) return;
  __shared__ std::uint32_t own_counts[kNumBuckets];
  for (unsigned i = threadIdx.x; i < kNumBuckets; i += SelectPolicy::threads) own_counts[i] = 0;
  __syncthreads();
  Key const low = cut->key;
  Key const high = cut->high;
  unsigned const shift = digit_shift(low, high);
  std::uint64_t const size = source.size();
  std::uint64_t const stride = std::uint64_t{gridDim.x} * SelectPolicy::threads;
  std::uint64_t const first = std::uint64_t{blockIdx.x} * SelectPolicy::threads + threadIdx.x;
  for (std::uint64_t i = first; i < size; i += stride) {
    Key const key = source.key_at(i);
    if (key < low || key > high) continue;
    auto const bucket = static_cast<std::uint32_t>((key - low) >> shift);
    // Equal keys in a warp, the usual case among ties, are added once.
    unsigned const peers = __match_any_sync(__activemask(), bucket);
    if (threadIdx.x % kWarp == static_cast<unsigned>(__ffs(static_cast<int>(peers))) - 1) {
      atomicAdd(&own_counts[bucket], static_cast<std::uint32_t>(__popc(peers)));
    }
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kNumBuckets; i += SelectPolicy::threads) {
    if (own_counts[i] != 0) atomicAdd(&counts[i], own_counts[i]);
  }
  if (is_last_block(&cut->ticket)) narrow_cut(*cut, shift, counts);
}

/// What the cut makes of an item.
template <typename Item, typename Key>
__device__ bool is_above(Item const& item, Cut<Key> const& cut) {
  return item.is_sure || item.key > cut.key;
}
template <typename Item, typename Key>
__device__ bool is_tie(Item const& item, Cut<Key> const& cut) {
  return !item.is_sure && item.key == cut.key;
}

/// A warp for each tile.
///   Source: Key; num_items(tile); item(tile, i), whose members are key and is_sure, and whatever
///   the writer of place_kernel needs
template <typename Source>
__global__ void __launch_bounds__(SelectPolicy::threads, SelectPolicy::min_blocks)
    count_tiles_kernel(Source source, Cut<typename Source::Key> const* cut, SelectTile* tiles,
                       std::uint64_t num_tiles) {
  constexpr unsigned kWarps = SelectPolicy::threads / kWarp;
  unsigned const lane = threadIdx.x % kWarp;
  Cut<typename Source::Key> const at = *cut;
  std::uint64_t tile = std::uint64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  for (; tile < num_tiles; tile += std::uint64_t{gridDim.x} * kWarps) {
    std::uint32_t num_above = 0;
    std::uint32_t num_ties = 0;
    std::uint32_t const count = source.num_items(tile);
    for (std::uint32_t i = lane; i < count; i += kWarp) {
      auto const item = source.item(tile, i);
      num_above += is_above(item, at) ? 1 : 0;
      num_ties += is_tie(item, at) ? 1 : 0;
    }
    num_above = __reduce_add_sync(kAllLanes, num_above);
    num_ties = __reduce_add_sync(kAllLanes, num_ties);
    if (lane == 0) {
      tiles[tile].num_above = num_above;
      tiles[tile].num_ties = num_ties;
    }
  }
}

/// One block: the place of each tile, how many of its ties are taken, and the counts of all.
template <typename Key>
__global__ void __launch_bounds__(ScanPolicy::threads, ScanPolicy::min_blocks)
    place_tiles_kernel(Cut<Key> const* cut, SelectTile* tiles, std::uint64_t num_tiles,
                       std::uint64_t capacity, SparseCounts* counts) {
  std::uint64_t const quota = cut->num_left;
  std::uint64_t num_above = 0;
  std::uint64_t num_ties = 0;
  for (std::uint64_t begin = 0; begin < num_tiles; begin += ScanPolicy::threads) {
    std::uint64_t const tile = begin + threadIdx.x;
    bool const exists = tile < num_tiles;
    // Both counts in one word: a tile of bits has eight times as many items as one of elements.
    static_assert(std::uint64_t{ScanPolicy::threads} * kSelectTile * 8 < std::uint64_t{1} << 32);
    std::uint64_t const ties = exists ? tiles[tile].num_ties : 0;
    std::uint64_t const own = exists ? ties << 32 | tiles[tile].num_above : 0;
    std::uint64_t all;
    std::uint64_t const before = scan_block<ScanPolicy::threads>(own, all);
    std::uint64_t const above_before = num_above + (before & 0xffffffffU);
    std::uint64_t const ties_before = num_ties + (before >> 32);
    if (exists) {
      std::uint64_t const taken_before = min(ties_before, quota);
      tiles[tile].num_taken = static_cast<std::uint32_t>(min(ties, quota - taken_before));
      tiles[tile].place = above_before + taken_before;
    }
    num_above += all & 0xffffffffU;
    num_ties += all >> 32;
  }
  if (threadIdx.x == 0 && counts != nullptr) {
    std::uint64_t const qualified = num_above + min(num_ties, quota);
    std::uint64_t const chosen = min(qualified, capacity);
    *counts = {chosen, chosen, qualified - chosen};
  }
}

/// A warp for each tile: writer.write(item, place) for the chosen items, in order, as far as there
/// is room; writer.leave(item) for the others.
template <typename Source, typename Writer>
__global__ void __launch_bounds__(SelectPolicy::threads, SelectPolicy::min_blocks)
    place_kernel(Source source, Writer writer, Cut<typename Source::Key> const* cut,
                 SelectTile const* tiles, std::uint64_t num_tiles, std::uint64_t capacity) {
  constexpr unsigned kWarps = SelectPolicy::threads / kWarp;
  unsigned const lane = threadIdx.x % kWarp;
  unsigned const before_lane = (1U << lane) - 1;
  Cut<typename Source::Key> const at = *cut;
  std::uint64_t tile = std::uint64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  for (; tile < num_tiles; tile += std::uint64_t{gridDim.x} * kWarps) {
    if (!source.has_work(tile, tiles[tile])) continue;
    std::uint64_t place = tiles[tile].place;
    std::uint32_t num_left = tiles[tile].num_taken;
    std::uint32_t const count = source.num_items(tile);
    for (std::uint32_t begin = 0; begin < count; begin += kWarp) {
      std::uint32_t const i = begin + lane;
      bool const exists = i < count;
      typename Source::Item item = {};
      if (exists) item = source.item(tile, i);
      unsigned const ties = __ballot_sync(kAllLanes, exists && is_tie(item, at));
      bool const is_first_tie = (ties >> lane & 1U) != 0 &&
                                static_cast<std::uint32_t>(__popc(ties & before_lane)) < num_left;
      bool const is_chosen = exists && (is_above(item, at) || is_first_tie);
      unsigned const chosen = __ballot_sync(kAllLanes, is_chosen);
      std::uint64_t const own_place = place + static_cast<unsigned>(__popc(chosen & before_lane));
      if (is_chosen && own_place < capacity) {
        writer.write(item, own_place);
      } else if (exists) {
        writer.leave(item);
      }
      num_left -= min(num_left, static_cast<std::uint32_t>(__popc(ties)));
      place += static_cast<unsigned>(__popc(chosen));
    }
  }
}

[[nodiscard]] inline unsigned grid_of_tiles(std::uint64_t num_tiles) noexcept {
  return grid_of(divide_up(num_tiles, SelectPolicy::threads / kWarp));
}

/// Finds the cut among the keys of `source`, of which the host knows an upper bound.
template <typename Source>
void refine_cut(ExecContext const& ctx, Source const& source, std::uint64_t most_keys,
                Cut<typename Source::Key>* cut, std::uint32_t* counts) noexcept {
  unsigned const grid = grid_of(divide_up(most_keys, SelectPolicy::threads * 16));
  for (int digit = 0; digit < kNumDigits<typename Source::Key>; ++digit) {
    launch(ctx, grid, SelectPolicy::threads, 0, refine_kernel<Source>, source, cut, counts);
  }
}

}  // namespace gradsieve::kernels::cuda
