// SPDX-License-Identifier: Apache-2.0
// A small tensor in the registers of a thread block: read once, chosen from, written once.
#pragma once

#include "kernels/cuda/bit_array.cuh"
#include "kernels/cuda/compensated.cuh"
#include "kernels/cuda/corrected_tile.cuh"
#include "kernels/cuda/many_runs.cuh"
#include "kernels/elias_fano_layout.hpp"
#include "kernels/index_forms.hpp"
#include "kernels/many_sparse_ops.hpp"

namespace gradsieve::kernels::cuda {

// Items are quads: 32 elements a thread, and with what is on its way at most 128 registers.
struct SelectManyPolicy {
  static constexpr unsigned threads = 512, items_per_thread = 8, min_blocks = 1;
};
inline constexpr unsigned kHeldThreads = SelectManyPolicy::threads;
inline constexpr unsigned kHeldQuads = SelectManyPolicy::items_per_thread;
inline constexpr unsigned kItemElements = kHeldThreads * 4;
static_assert(kHeldQuads * kItemElements == kMostHeldElements);
static_assert(kItemElements < 1U << 16, "two counts of an item share a word");

using Held = Pack<float, 4>[kHeldQuads];

/// Reads a segment once for all threads, which all call it.
__device__ inline void fetch_segment(SparseSegment const* segments, std::uint64_t number,
                                     SparseSegment& shared) {
  constexpr unsigned kWords = sizeof(SparseSegment) / sizeof(std::uint64_t);
  static_assert(sizeof(SparseSegment) % sizeof(std::uint64_t) == 0);
  __syncthreads();  // the segment before is done with
  if (threadIdx.x < kWords) {
    reinterpret_cast<std::uint64_t*>(&shared)[threadIdx.x] =
        reinterpret_cast<std::uint64_t const*>(segments + number)[threadIdx.x];
  }
  __syncthreads();
}

/// Where a thread's quad of an item lies, and how many of its elements there are.
struct HeldPlace {
  unsigned first;
  unsigned count;

  __device__ HeldPlace(unsigned item, unsigned size)
      : first((item * kHeldThreads + threadIdx.x) * 4),
        count(first >= size ? 0 : min(size - first, 4U)) {}
};

/// c of a segment, to the thread's registers. All loads of four items are issued before the first
/// sum.
template <bool kAligned, typename G>
__device__ void hold(EncodedSegment<G> const& at, unsigned size, float carry, Held& c,
                     bool& non_finite) {
  constexpr unsigned kTogether = 4;
#pragma unroll
  for (unsigned first = 0; first < kHeldQuads; first += kTogether) {
    Pack<G, 4> g[kTogether];
    Pack<float, 4> e[kTogether] = {};
#pragma unroll
    for (unsigned i = 0; i < kTogether; ++i) {
      HeldPlace const place(first + i, size);
      g[i] = load_quad<kAligned>(at.gradient + place.first, place.count);
      if (at.residual_in != nullptr) {
        e[i] = load_quad<kAligned>(at.residual_in + place.first, place.count);
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kTogether; ++i) {
#pragma unroll
      for (unsigned lane = 0; lane < 4; ++lane) {
        c[first + i].at[lane] =
            compensated(widened(g[i].at[lane]), carry, e[i].at[lane], non_finite);
      }
    }
  }
}

template <bool kAligned>
__device__ void store_held(Held const& c, unsigned size, float* residual) {
#pragma unroll
  for (unsigned item = 0; item < kHeldQuads; ++item) {
    HeldPlace const at(item, size);
    store_quad<kAligned>(residual + at.first, c[item], at.count);
  }
}

/// Header and coded indices as they are before the first index.
__device__ inline void open_body(SparseSegment const& segment, std::byte* bodies) {
  if (threadIdx.x < segment.header_bytes / sizeof(std::uint64_t)) {
    reinterpret_cast<std::uint64_t*>(bodies + segment.body_begin)[threadIdx.x] =
        segment.header.data()[threadIdx.x];
  }
  std::uint64_t const num_bytes = segment.index_bytes();
  std::byte* const code = bodies + segment.index_begin;
  auto* const words = reinterpret_cast<std::uint32_t*>(code);  // it begins at a word
  for (std::uint64_t i = threadIdx.x; i < num_bytes / 4; i += kHeldThreads) words[i] = 0;
  if (threadIdx.x < num_bytes % 4) code[num_bytes - 1 - threadIdx.x] = std::byte{0};
}

/// Takes an index by its rank: to the array, and to the code if it travels.
struct IndexWriter {
  std::uint32_t* indices;
  BitWriter bits;
  IndexForm form;
  std::uint32_t low_bits;
  std::uint64_t high_begin;

  __device__ IndexWriter(SparseSegment const& segment, std::uint32_t* own_indices,
                         std::byte* bodies)
      : indices(own_indices),
        bits(bodies + segment.index_begin),
        form(static_cast<IndexForm>(segment.index_form())) {
    EliasFanoLayout const layout(segment.universe, segment.capacity());
    low_bits = layout.low_bits;
    high_begin = std::uint64_t{layout.low_bytes} * 8;
  }
  __device__ void put(std::uint64_t rank, std::uint32_t index) const {
    indices[rank] = index;
    if (form == IndexForm::bitmap) bits.set(index, 1);
    if (form != IndexForm::elias_fano) return;
    bits.set(rank * low_bits, index & ((1U << low_bits) - 1U));
    bits.set(high_begin + (index >> low_bits) + rank, 1);
  }
};

struct Placed {
  std::uint32_t num_values;
  std::uint32_t num_qualified;
};

/// What is chosen goes to its place, in the order of the elements; the rest is the residual.
///   Choice: kGoesByUnits (an index stands for several elements, which are chosen together, and c
///   is in the residual already); is_sure(index, magnitude); is_tie(magnitude), of which the first
///   num_ties() are chosen
template <bool kAligned, typename Choice>
__device__ Placed place_chosen(Held& c, unsigned size, Choice const& choice, unsigned granularity,
                               std::uint32_t capacity, IndexWriter const& code, float* values,
                               float* residual) {
  std::uint32_t num_above = 0;
  std::uint32_t num_ties = 0;
#pragma unroll
  for (unsigned item = 0; item < kHeldQuads; ++item) {
    if (item * kItemElements >= size) break;
    HeldPlace const at(item, size);
    unsigned above_lanes = 0;
    unsigned tie_lanes = 0;
#pragma unroll
    for (unsigned lane = 0; lane < 4; ++lane) {
      if (lane >= at.count) continue;
      std::uint32_t const magnitude = magnitude_of(c[item].at[lane]);
      if (choice.is_sure(at.first + lane, magnitude)) above_lanes |= 1U << lane;
      if (choice.is_tie(magnitude)) tie_lanes |= 1U << lane;
    }
    auto const own = static_cast<std::uint32_t>(__popc(static_cast<int>(above_lanes)) |
                                                __popc(static_cast<int>(tie_lanes)) << 16);
    std::uint32_t total;
    std::uint32_t const before = scan_block<kHeldThreads>(own, total);
    std::uint32_t above = num_above + (before & 0xffffU);
    std::uint32_t ties = num_ties + (before >> 16);
    bool has_changed = false;
#pragma unroll
    for (unsigned lane = 0; lane < 4; ++lane) {
      bool const is_sure = (above_lanes >> lane & 1U) != 0;
      bool const is_tie = (tie_lanes >> lane & 1U) != 0;
      std::uint32_t const rank = above + min(ties, choice.num_ties());
      bool const is_chosen = (is_sure || (is_tie && ties < choice.num_ties())) && rank < capacity;
      above += is_sure ? 1 : 0;
      ties += is_tie ? 1 : 0;
      if (!is_chosen) continue;
      std::uint32_t const index = at.first + lane;
      values[rank] = c[item].at[lane];
      if constexpr (Choice::kGoesByUnits) {
        // All units before it are whole.
        if (index % granularity == 0) code.put(rank / granularity, index / granularity);
      } else {
        code.put(rank, index);
      }
      c[item].at[lane] = 0.0F;
      has_changed = true;
    }
    if (!Choice::kGoesByUnits || has_changed) {
      store_quad<kAligned>(residual + at.first, c[item], at.count);
    }
    num_above += total & 0xffffU;
    num_ties += total >> 16;
  }
  std::uint32_t const qualified = num_above + min(num_ties, choice.num_ties());
  return {min(qualified, capacity), qualified};
}

}  // namespace gradsieve::kernels::cuda
