// SPDX-License-Identifier: Apache-2.0
// Selection from many small tensors in one launch. A thread block holds a tensor in its registers:
// it reads gradient and residual once, finds in shared memory what is chosen, and writes that, its
// coded indices and the residual. A thread that places an element knows its rank, so indices are
// coded as they are found.
#include "kernels/cuda/block_scales.cuh"
#include "kernels/cuda/held_choice.cuh"

namespace gradsieve::kernels::cuda {
namespace {

struct SparseAddManyPolicy {
  static constexpr unsigned threads = 256, min_blocks = 4;
};
struct PutBackManyPolicy {
  static constexpr unsigned threads = 256, min_blocks = 4;
};

/// Fills what is left of the room, and counts.
__device__ void close_segment(SparseSegment const& segment, Placed const& placed,
                              std::uint32_t num_indices, IndexWriter const& code, float* values,
                              StepWords* words) {
  for (std::uint64_t j = num_indices + threadIdx.x; j < segment.capacity(); j += kHeldThreads) {
    code.put(j, static_cast<std::uint32_t>(segment.num_units() + (j - num_indices)));
  }
  for (std::uint64_t j = placed.num_values + threadIdx.x; j < segment.num_values;
       j += kHeldThreads) {
    values[j] = 0.0F;
  }
  if (threadIdx.x != 0) return;
  auto const add = [](std::uint64_t* word, std::uint32_t count) {
    atomicAdd(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(count));
  };
  add(&words->kept_elements, placed.num_values);
  if (placed.num_qualified == placed.num_values) return;
  add(&words->overflowed_elements, placed.num_qualified - placed.num_values);
  atomicOr(&words->flags, kStepOverflow);
}

template <bool kAligned, typename Choice, typename G>
__device__ void select_held(SparseSegment const& segment, EncodedSegment<G> const& at, float carry,
                            std::uint64_t word, IndexWriter const& code, float* values,
                            typename Choice::Storage& storage, StepWords* words, bool& non_finite) {
  auto const size = static_cast<unsigned>(segment.num_elements);
  Held c;
  hold<kAligned>(at, size, carry, c, non_finite);
  if constexpr (Choice::kGoesByUnits) {
    __syncthreads();  // all of the residual is read
    store_held<kAligned>(c, size, at.residual_out);
    __syncthreads();
  }
  Choice const choice(c, segment, word, at.residual_out, storage);
  __syncthreads();  // the code is zeros
  Placed const placed = place_chosen<kAligned>(
      c, size, choice, static_cast<unsigned>(segment.granularity),
      static_cast<std::uint32_t>(segment.num_values), code, values, at.residual_out);
  close_segment(segment, placed, choice.num_indices(placed.num_values), code, values, words);
}

template <typename Choice, typename G>
__global__ void __launch_bounds__(SelectManyPolicy::threads, SelectManyPolicy::min_blocks)
    select_many_kernel(SparseSegment const* segments, std::uint64_t num_segments,
                       EncodedArrays const arrays, ChosenArrays const chosen,
                       std::uint64_t const* step_words, StepWords* words) {
  __shared__ SparseSegment segment;
  __shared__ EncodedSegment<G> at;
  __shared__ typename Choice::Storage storage;
  float const carry = arrays.carry.get();
  bool non_finite = false;
  for (std::uint64_t number = blockIdx.x; number < num_segments; number += gridDim.x) {
    fetch_segment(segments, number, segment);
    at.place(arrays, segment.in_gradient, segment.in_residual);
    open_body(segment, arrays.bodies);
    IndexWriter const code(segment, chosen.indices + segment.in_indices, arrays.bodies);
    float* const values = chosen.values + segment.in_values;
    std::uint64_t const word = step_words[segment.word];
    if (all_quad_aligned(at.gradient, at.residual_in, at.residual_out)) {
      select_held<true, Choice>(segment, at, carry, word, code, values, storage, words, non_finite);
    } else {
      select_held<false, Choice>(segment, at, carry, word, code, values, storage, words,
                                 non_finite);
    }
  }
  raise(words, kStepNonFinite, non_finite);
}

template <typename Choice>
void select_by(ExecContext const& ctx, std::span<SparseSegment const> segments,
               EncodedArrays const& arrays, ChosenArrays const& chosen) noexcept {
  with_dtype(arrays.gradient.dtype, [&]<typename G>(G const*) {
    launch(ctx, grid_of(segments.size()), SelectManyPolicy::threads, 0,
           select_many_kernel<Choice, G>, segments.data(), std::uint64_t{segments.size()}, arrays,
           chosen, ctx.piece_word, ctx.words);
  });
}

// --- back ----------------------------------------------------------------------------------------

__global__ void __launch_bounds__(PutBackManyPolicy::threads, PutBackManyPolicy::min_blocks)
    put_back_many_kernel(SparseSegment const* segments, std::uint64_t num_segments,
                         std::uint32_t const* indices, float const* lost, float* residual) {
  __shared__ SparseSegment segment;
  for (std::uint64_t number = blockIdx.x; number < num_segments; number += gridDim.x) {
    fetch_segment(segments, number, segment);
    Divisor const to_index(segment.granularity);
    for (std::uint64_t j = threadIdx.x; j < segment.num_values; j += PutBackManyPolicy::threads) {
      std::uint64_t const number_of_index = to_index.quotient(j);
      std::uint64_t const element =
          indices[segment.in_indices + number_of_index] * segment.granularity +
          (j - number_of_index * segment.granularity);
      if (element >= segment.num_elements) continue;
      float* const to = residual + segment.in_residual + element;
      *to = canonical(*to + lost[segment.in_values + j]);
    }
  }
}

/// What decodes the indices of a segment: the row of bits whose ones are indices, and what else an
/// index is made of.
struct IndexReader {
  BitReader low;
  BitReader row;
  std::uint32_t low_bits;
  std::uint64_t universe;
  std::uint64_t num_indices;

  __device__ IndexReader(SparseSegment const& segment, std::byte const* bodies)
      : low(nullptr, 0),
        row(bodies + segment.index_begin, segment.index_bytes()),
        low_bits(0),
        universe(segment.universe),
        num_indices(segment.capacity()) {
    if (segment.index_form() == static_cast<std::uint32_t>(IndexForm::bitmap)) return;
    EliasFanoLayout const layout(universe, num_indices);
    low = BitReader(bodies + segment.index_begin, layout.low_bytes);
    row = BitReader(bodies + segment.index_begin + layout.low_bytes, layout.high_bytes);
    low_bits = layout.low_bits;
    is_bitmap = false;
  }
  /// Of one number `rank` at `position` of the row.
  [[nodiscard]] __device__ std::uint64_t index(std::uint64_t position, std::uint64_t rank) const {
    if (is_bitmap) return position;
    return (position - rank) << low_bits | low.bits(rank * low_bits, low_bits);
  }
  /// Whether the index is none, or not above the one before it.
  [[nodiscard]] __device__ bool is_wrong(std::uint64_t position, std::uint64_t rank,
                                         std::uint64_t found) const {
    if (found >= universe) return true;
    if (is_bitmap || rank == 0 || row.bits(position - 1, 1) == 0) return false;
    return low.bits(rank * low_bits, low_bits) <= low.bits((rank - 1) * low_bits, low_bits);
  }
  /// Bits behind the low parts that stand for nothing.
  [[nodiscard]] __device__ bool has_stray_bits() const {
    std::uint64_t const num_bits = num_indices * low_bits;
    return !is_bitmap && num_bits % 8 != 0 && low.bytes[num_bits / 8] >> (num_bits % 8) != 0;
  }

 private:
  bool is_bitmap = true;
};

/// Whether header or padding of a body are not as planned. All threads look.
__device__ bool has_wrong_edges(SparseSegment const& segment, std::byte const* bodies) {
  bool found = false;
  if (threadIdx.x < segment.header_bytes / sizeof(std::uint64_t)) {
    found = reinterpret_cast<std::uint64_t const*>(bodies + segment.body_begin)[threadIdx.x] !=
            segment.header.data()[threadIdx.x];
  }
  std::uint64_t const i = segment.values_end + threadIdx.x;
  return found || (i < segment.index_begin && bodies[i] != std::byte{0});
}

/// Finds the indices of a segment in its code: visit(rank, index) for each. True if they are not
/// the ones of a sound body; an index that is none is not visited. All threads call it.
template <typename Visit>
__device__ bool read_code(SparseSegment const& segment, std::byte const* bodies,
                          Visit const& visit) {
  IndexReader const code(segment, bodies);
  bool is_wrong = threadIdx.x == 0 && code.has_stray_bits();
  std::uint64_t const num_words = (code.row.num_bytes + 3) / 4;
  std::uint32_t num_found = 0;
  for (std::uint64_t first = 0; first < num_words; first += SparseAddManyPolicy::threads) {
    std::uint64_t const at = first + threadIdx.x;
    std::uint32_t word = at < num_words ? code.row.word(at) : 0;
    auto const own = static_cast<std::uint32_t>(__popc(static_cast<int>(word)));
    std::uint32_t total;
    std::uint32_t rank = num_found + scan_block<SparseAddManyPolicy::threads>(own, total);
    num_found += total;
    for (; word != 0 && rank < code.num_indices; word &= word - 1, ++rank) {
      std::uint64_t const position =
          at * 32 + static_cast<unsigned>(__ffs(static_cast<int>(word))) - 1;
      std::uint64_t const index = code.index(position, rank);
      if (code.is_wrong(position, rank, index)) {
        is_wrong = true;
      } else {
        visit(rank, static_cast<std::uint32_t>(index));
      }
    }
  }
  return is_wrong || num_found != code.num_indices;
}

/// Of units of several elements: held until all threads add what they stand for.
struct HeldIndices {
  std::uint32_t at[kMostHeldBlocks];
};

__global__ void __launch_bounds__(SparseAddManyPolicy::threads, SparseAddManyPolicy::min_blocks)
    sparse_add_many_kernel(SparseSegment const* segments, std::uint64_t num_segments,
                           DecodedArrays const arrays, float const* values,
                           std::uint64_t const* step_words, std::uint32_t const* only_if,
                           StepWords* words) {
  __shared__ SparseSegment segment;
  __shared__ HeldIndices held;
  if (only_if != nullptr && *only_if == 0) return;
  bool is_wrong = false;
  for (std::uint64_t number = blockIdx.x; number < num_segments; number += gridDim.x) {
    fetch_segment(segments, number, segment);
    float* const sums =
        arrays.accumulator + (arrays.lies_as_residual ? segment.in_residual : segment.in_gradient);
    auto const add = [&](std::uint64_t element, std::uint64_t place) {
      if (element >= segment.num_elements) return;
      float const product = arrays.weight * values[segment.in_values + place];
      sums[element] = canonical(sums[element] + product);
    };
    is_wrong = has_wrong_edges(segment, arrays.bodies) || is_wrong;
    if (segment.index_form() == static_cast<std::uint32_t>(IndexForm::shared)) {
      for_each_drawn<SparseAddManyPolicy::threads>(
          segment, step_words[segment.word],
          [&](std::uint64_t j, std::uint32_t index) { add(index, j); });
    } else if (segment.granularity == 1) {
      bool const found =
          read_code(segment, arrays.bodies,
                    [&](std::uint32_t rank, std::uint32_t index) { add(index, rank); });
      is_wrong = found || is_wrong;
    } else {
      for (unsigned i = threadIdx.x; i < kMostHeldBlocks; i += SparseAddManyPolicy::threads) {
        held.at[i] = ~0U;
      }
      __syncthreads();
      bool const found =
          read_code(segment, arrays.bodies,
                    [&](std::uint32_t rank, std::uint32_t index) { held.at[rank] = index; });
      is_wrong = found || is_wrong;
      __syncthreads();
      Divisor const to_index(segment.granularity);
      for (std::uint64_t j = threadIdx.x; j < segment.num_values;
           j += SparseAddManyPolicy::threads) {
        std::uint64_t const rank = to_index.quotient(j);
        add(held.at[rank] * segment.granularity + (j - rank * segment.granularity), j);
      }
    }
  }
  raise(words, kStepCorrupt, is_wrong);
}

}  // namespace

Flags select_many(ExecContext const& ctx, std::span<SparseSegment const> segments, HeldRule rule,
                  EncodedArrays const& arrays, ChosenArrays const& chosen) noexcept {
  if (segments.empty()) return 0;
  switch (rule) {
    case HeldRule::topk:
      select_by<LargestOnes>(ctx, segments, arrays, chosen);
      break;
    case HeldRule::threshold:
      select_by<ReachedOnes>(ctx, segments, arrays, chosen);
      break;
    case HeldRule::block_l2:
      select_by<LargestBlocks<BlockNorm::l2>>(ctx, segments, arrays, chosen);
      break;
    case HeldRule::block_linf:
      select_by<LargestBlocks<BlockNorm::linf>>(ctx, segments, arrays, chosen);
      break;
    case HeldRule::randomk:
      select_by<DrawnOnes>(ctx, segments, arrays, chosen);
      break;
  }
  return 0;
}

void put_back_many(ExecContext const& ctx, std::span<SparseSegment const> segments,
                   std::uint32_t const* indices, float const* lost, float* residual) noexcept {
  if (segments.empty()) return;
  launch(ctx, grid_of(segments.size()), PutBackManyPolicy::threads, 0, put_back_many_kernel,
         segments.data(), std::uint64_t{segments.size()}, indices, lost, residual);
}

bool sparse_add_many(ExecContext const& ctx, std::span<SparseSegment const> segments,
                     DecodedArrays const& arrays, float const* values) noexcept {
  if (segments.empty()) return true;
  launch(ctx, grid_of(segments.size()), SparseAddManyPolicy::threads, 0, sparse_add_many_kernel,
         segments.data(), std::uint64_t{segments.size()}, arrays, values, ctx.piece_word,
         ctx.only_if, ctx.words);
  return true;
}

}  // namespace gradsieve::kernels::cuda
