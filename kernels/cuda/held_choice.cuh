// SPDX-License-Identifier: Apache-2.0
// Which elements of a tensor that a thread block holds are chosen: the rules of select_many().
#pragma once

#include "kernels/cuda/block_norm.cuh"
#include "kernels/cuda/held_tensor.cuh"

namespace gradsieve::kernels::cuda {

inline constexpr unsigned kCutBits = 11;
inline constexpr unsigned kCutBuckets = 1U << kCutBits;

/// Keys above the cut are chosen, and of those equal to it the first `num_ties`.
template <typename Key>
struct HeldCut {
  Key key;
  std::uint32_t num_ties;
};

template <typename Key>
struct CutSearch {
  std::uint32_t counts[kCutBuckets];
  HeldCut<Key> found;
};

/// The cut of the k largest keys below 2^kBits, a digit at a time from the top.
///   for_each(visit): visit(exists, key) for the thread's keys; all threads as often
template <unsigned kBits, typename Key, typename ForEach>
__device__ HeldCut<Key> find_cut(ForEach const& for_each, std::uint32_t k, CutSearch<Key>& search) {
  constexpr unsigned kPerThread = kCutBuckets / kHeldThreads;
  if (k == 0) return {~Key{0}, 0};
  HeldCut<Key> cut = {0, k};
  for (unsigned end = kBits; end != 0;) {  // bits from there on are known
    unsigned const width = min(end, kCutBits);
    unsigned const shift = end - width;
    for (unsigned i = threadIdx.x; i < kCutBuckets; i += kHeldThreads) search.counts[i] = 0;
    __syncthreads();
    for_each([&](bool exists, Key key) {
      bool const counts = exists && key >> end == cut.key;
      auto const bucket = static_cast<std::uint32_t>(key >> shift) & ((1U << width) - 1U);
      // Equal keys in a warp, the usual case among ties, are added once.
      unsigned const peers = __match_any_sync(kAllLanes, counts ? bucket : kCutBuckets);
      auto const leader = static_cast<unsigned>(__ffs(static_cast<int>(peers))) - 1;
      if (counts && threadIdx.x % kWarp == leader) {
        atomicAdd(&search.counts[bucket],
                  static_cast<std::uint32_t>(__popc(static_cast<int>(peers))));
      }
    });
    __syncthreads();
    // The buckets from the top, a few neighbours a thread.
    unsigned const top = kCutBuckets - 1 - threadIdx.x * kPerThread;
    std::uint32_t own[kPerThread];
    std::uint32_t sum = 0;
#pragma unroll
    for (unsigned i = 0; i < kPerThread; ++i) {
      own[i] = search.counts[top - i];
      sum += own[i];
    }
    std::uint32_t total;
    std::uint32_t above = scan_block<kHeldThreads>(sum, total);
    bool const is_here = above < cut.num_ties && above + sum >= cut.num_ties;
#pragma unroll
    for (unsigned i = 0; i < kPerThread; ++i) {
      if (is_here && above < cut.num_ties && above + own[i] >= cut.num_ties) {
        search.found = {cut.key << width | (top - i), cut.num_ties - above};
      }
      above += own[i];
    }
    __syncthreads();
    cut = search.found;
    end = shift;
  }
  return cut;
}

/// A rule has a Storage in shared memory and is made by all threads of a block from c, the segment
/// and its step word. What it says of an element is said in held_tensor.cuh.
struct CutChoice {
  static constexpr bool kGoesByUnits = false;
  HeldCut<std::uint32_t> cut;

  [[nodiscard]] __device__ bool is_sure(unsigned, std::uint32_t magnitude) const {
    return magnitude > cut.key;
  }
  [[nodiscard]] __device__ bool is_tie(std::uint32_t magnitude) const {
    return magnitude == cut.key;
  }
  [[nodiscard]] __device__ std::uint32_t num_ties() const { return cut.num_ties; }
  [[nodiscard]] __device__ std::uint32_t num_indices(std::uint32_t num_values) const {
    return num_values;
  }
};

struct LargestOnes : CutChoice {
  using Storage = CutSearch<std::uint32_t>;

  __device__ LargestOnes(Held const& c, SparseSegment const& segment, std::uint64_t word,
                         float const*, Storage& storage) {
    auto const size = static_cast<unsigned>(segment.num_elements);
    auto const k = static_cast<std::uint32_t>(min(word, segment.num_elements));
    auto const for_each = [&](auto const& visit) {
#pragma unroll
      for (unsigned item = 0; item < kHeldQuads; ++item) {
        if (item * kItemElements >= size) break;
        HeldPlace const at(item, size);
#pragma unroll
        for (unsigned lane = 0; lane < 4; ++lane)
          visit(lane < at.count, magnitude_of(c[item].at[lane]));
      }
    };
    cut = find_cut<31>(for_each, k, storage);
  }
};

struct ReachedOnes : CutChoice {
  struct Storage {};

  __device__ ReachedOnes(Held const&, SparseSegment const&, std::uint64_t word, float const*,
                         Storage&) {
    cut = {(static_cast<std::uint32_t>(word) & 0x7fffffffU) - 1, 0};
  }
};

/// Units that are marked in shared memory.
template <unsigned kMostUnits>
struct MarkedUnits {
  std::uint32_t words[kMostUnits / 32];

  __device__ void clear() {
    for (unsigned i = threadIdx.x; i < kMostUnits / 32; i += kHeldThreads) words[i] = 0;
  }
  __device__ void mark(unsigned unit) { atomicOr(&words[unit / 32], 1U << unit % 32); }
  [[nodiscard]] __device__ bool has(unsigned unit) const {
    return (words[unit / 32] >> unit % 32 & 1U) != 0;
  }
};

/// Index j of a drawn set, by its random bits.
__device__ inline std::uint32_t drawn_index(SparseSegment const& segment, std::uint64_t j,
                                            std::uint32_t bits) {
  std::uint64_t const start = j * segment.num_elements / segment.capacity();
  std::uint64_t const end = (j + 1) * segment.num_elements / segment.capacity();
  return static_cast<std::uint32_t>(start + (std::uint64_t{bits} * (end - start) >> 32));
}

/// visit(j, index) for the indices of a drawn set, by kThreads threads; four share a Philox block.
template <unsigned kThreads, typename Visit>
__device__ void for_each_drawn(SparseSegment const& segment, std::uint64_t step,
                               Visit const& visit) {
  for (std::uint64_t group = threadIdx.x; group * 4 < segment.capacity(); group += kThreads) {
    auto const words = philox(segment.key, group, step);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      std::uint64_t const j = group * 4 + i;
      if (j < segment.capacity()) visit(j, drawn_index(segment, j, words[i]));
    }
  }
}

struct DrawnOnes {
  using Storage = MarkedUnits<kMostHeldElements>;
  static constexpr bool kGoesByUnits = false;
  Storage const& chosen;

  __device__ DrawnOnes(Held const&, SparseSegment const& segment, std::uint64_t word, float const*,
                       Storage& storage)
      : chosen(storage) {
    storage.clear();
    __syncthreads();
    for_each_drawn<kHeldThreads>(segment, word,
                                 [&](std::uint64_t, std::uint32_t index) { storage.mark(index); });
    __syncthreads();
  }
  [[nodiscard]] __device__ bool is_sure(unsigned index, std::uint32_t) const {
    return chosen.has(index);
  }
  [[nodiscard]] static __device__ bool is_tie(std::uint32_t) { return false; }
  [[nodiscard]] static __device__ std::uint32_t num_ties() { return 0; }
  [[nodiscard]] static __device__ std::uint32_t num_indices(std::uint32_t num_values) {
    return num_values;
  }
};

struct BlockStorage {
  CutSearch<std::uint64_t> search;
  std::uint64_t norms[kMostHeldBlocks];
  MarkedUnits<kMostHeldBlocks> chosen;
};

template <BlockNorm kNorm>
struct LargestBlocks {
  using Storage = BlockStorage;
  static constexpr bool kGoesByUnits = true;
  Storage const& storage;
  unsigned granularity;
  std::uint32_t num_chosen;

  /// c is in memory, for sums in the order of a block's elements.
  __device__ LargestBlocks(Held const&, SparseSegment const& segment, std::uint64_t word,
                           float const* c, Storage& shared)
      : storage(shared),
        granularity(static_cast<unsigned>(segment.granularity)),
        num_chosen(static_cast<std::uint32_t>(min(word, segment.num_units()))) {
    auto const num_blocks = static_cast<unsigned>(segment.num_units());
    shared.chosen.clear();
    make_norms(c, static_cast<unsigned>(segment.num_elements), num_blocks, shared.norms);
    __syncthreads();
    auto const for_each = [&](auto const& visit) {
      for (unsigned first = 0; first < num_blocks; first += kHeldThreads) {
        unsigned const block = first + threadIdx.x;
        visit(block < num_blocks, shared.norms[min(block, num_blocks - 1)]);
      }
    };
    HeldCut<std::uint64_t> const cut = find_cut<63>(for_each, num_chosen, shared.search);
    std::uint32_t num_ties = 0;
    for (unsigned first = 0; first < num_blocks; first += kHeldThreads) {
      unsigned const block = first + threadIdx.x;
      bool const exists = block < num_blocks;
      std::uint64_t const norm = exists ? shared.norms[block] : 0;
      bool const is_tie = exists && norm == cut.key;
      std::uint32_t total;
      std::uint32_t const ties = num_ties + scan_block<kHeldThreads>(is_tie ? 1U : 0U, total);
      if (exists && (norm > cut.key || (is_tie && ties < cut.num_ties))) shared.chosen.mark(block);
      num_ties += total;
    }
    __syncthreads();
  }

  [[nodiscard]] __device__ bool is_sure(unsigned index, std::uint32_t) const {
    return storage.chosen.has(index / granularity);
  }
  [[nodiscard]] static __device__ bool is_tie(std::uint32_t) { return false; }
  [[nodiscard]] static __device__ std::uint32_t num_ties() { return 0; }
  [[nodiscard]] __device__ std::uint32_t num_indices(std::uint32_t) const { return num_chosen; }

 private:
  /// Eight neighbouring threads are the lanes of a block's sum.
  __device__ void make_norms(float const* c, unsigned size, unsigned num_blocks,
                             std::uint64_t* norms) const {
    unsigned const lane = threadIdx.x % kNormLanes;
    for (unsigned first = 0; first < num_blocks; first += kHeldThreads / kNormLanes) {
      unsigned const block = first + threadIdx.x / kNormLanes;
      unsigned const begin = min(block * granularity, size);
      unsigned const end = min(begin + granularity, size);
      double sum = 0;
      for (unsigned i = begin + lane; i < end; i += kNormLanes)
        sum = combined(sum, term_of(c[i], kNorm), kNorm);
      sum = sum_of_lanes(sum, kNorm);
      if (lane == 0 && block < num_blocks) {
        norms[block] = static_cast<std::uint64_t>(__double_as_longlong(sum));
      }
    }
  }
};

}  // namespace gradsieve::kernels::cuda
