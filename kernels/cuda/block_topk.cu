// SPDX-License-Identifier: Apache-2.0
// One pass makes c and the norms of the blocks; the k largest norms are found by counting; then the
// values of the chosen blocks are taken. Norms are doubles that are not negative: their bits are in
// their order.
#include "kernels/cuda/block_norm.cuh"
#include "kernels/cuda/corrected_tile.cuh"
#include "kernels/cuda/select.cuh"
#include "kernels/ops.hpp"
#include "kernels/select_layout.hpp"

namespace gradsieve::kernels::cuda {
namespace {

// A thread is one of the eight lanes of a block's sum.
struct NormPolicy {
  static constexpr unsigned threads = 128, items_per_thread = 4, min_blocks = 8;
};
template <typename T>
__global__ void __launch_bounds__(NormPolicy::threads, NormPolicy::min_blocks)
    norm_kernel(CorrectedTile<T> source, std::uint64_t num_elements, std::uint64_t block_elements,
                BlockNorm norm, std::uint64_t* norms, std::uint64_t num_blocks, StepWords* words) {
  constexpr unsigned kUnroll = NormPolicy::items_per_thread;
  source.begin();
  bool non_finite = false;
  std::uint64_t const lane = threadIdx.x % kNormLanes;
  std::uint64_t const per_grid = std::uint64_t{gridDim.x} * NormPolicy::threads / kNormLanes;
  std::uint64_t const first =
      (std::uint64_t{blockIdx.x} * NormPolicy::threads + threadIdx.x) / kNormLanes;
  // All threads of a warp take as many turns, for the shuffles.
  for (std::uint64_t turn = 0; turn * per_grid < num_blocks; ++turn) {
    std::uint64_t const block = turn * per_grid + first;
    std::uint64_t const begin = min(block * block_elements, num_elements);
    std::uint64_t const end = min(begin + block_elements, num_elements);
    double sum = 0;
    for (std::uint64_t i = begin + lane; i < end; i += kUnroll * kNormLanes) {
      T g[kUnroll];
      float e[kUnroll] = {};
#pragma unroll
      for (unsigned j = 0; j < kUnroll; ++j) {
        if (i + j * kNormLanes >= end) continue;
        g[j] = source.gradient[i + j * kNormLanes];
        if (source.residual_in != nullptr) e[j] = source.residual_in[i + j * kNormLanes];
      }
#pragma unroll
      for (unsigned j = 0; j < kUnroll; ++j) {
        if (i + j * kNormLanes >= end) continue;
        float const c = compensated(widened(g[j]), source.carry.value, e[j], non_finite);
        source.residual_out[i + j * kNormLanes] = c;
        sum = combined(sum, term_of(c, norm), norm);
      }
    }
    sum = sum_of_lanes(sum, norm);
    if (lane == 0 && block < num_blocks) {
      norms[block] = static_cast<std::uint64_t>(__double_as_longlong(sum));
    }
  }
  raise(words, kStepNonFinite, non_finite);
}

struct NormSource {
  using Key = std::uint64_t;
  struct Item {
    Key key;
    std::uint32_t index;
    bool is_sure;
  };

  Key const* norms;
  std::uint64_t num_blocks;

  [[nodiscard]] __device__ std::uint64_t size() const { return num_blocks; }
  [[nodiscard]] __device__ Key key_at(std::uint64_t i) const { return norms[i]; }
  [[nodiscard]] __device__ bool has_work(std::uint64_t, SelectTile const& record) const {
    return record.num_above + record.num_taken != 0;
  }
  [[nodiscard]] __device__ std::uint32_t num_items(std::uint64_t tile) const {
    return static_cast<std::uint32_t>(
        min(num_blocks - tile * kSelectTile, std::uint64_t{kSelectTile}));
  }
  [[nodiscard]] __device__ Item item(std::uint64_t tile, std::uint32_t i) const {
    std::uint64_t const block = tile * kSelectTile + i;
    return {norms[block], static_cast<std::uint32_t>(block), false};
  }
};

struct BlockWriter {
  std::uint32_t* indices;
  __device__ void write(NormSource::Item const& item, std::uint64_t place) const {
    indices[place] = item.index;
  }
  __device__ void leave(NormSource::Item const&) const {}
};

constexpr std::uint64_t kAnyNorm = 0x7fffffffffffffffU;

__global__ void begin_cut_kernel(Cut<std::uint64_t>* cut, StepValue<std::uint64_t> num_chosen,
                                 std::uint64_t num_blocks) {
  std::uint64_t const k = min(num_chosen.get(), num_blocks);
  *cut = {0, kAnyNorm, k, 0, 0};
  if (k == 0) *cut = {kAnyNorm, kAnyNorm, 0, 1, 0};
}

/// The last block of the gradient may be short, and it is the last one chosen if it is.
__global__ void count_values_kernel(std::uint32_t const* indices, std::uint64_t num_elements,
                                    std::uint64_t block_elements, SparseCounts* counts) {
  std::uint64_t const k = counts->num_indices;
  std::uint64_t num_values = k * block_elements;
  if (k != 0) {
    std::uint64_t const end = (indices[k - 1] + std::uint64_t{1}) * block_elements;
    num_values -= end > num_elements ? end - num_elements : 0;
  }
  counts->num_values = num_values;
}

}  // namespace

Flags block_topk(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                 std::uint64_t block_elements, BlockNorm norm, StepValue<std::uint64_t> k,
                 SparseView& selection) noexcept {
  std::uint64_t const n = gradient.num_elements;
  std::uint64_t const num_blocks = divide_up(n, block_elements);
  std::uint64_t const num_tiles = num_tiles_of(num_blocks);
  std::uint64_t const most = k.at == nullptr ? k.value : selection.indices.size();
  selection.num_indices = most;
  selection.num_values = std::min<std::uint64_t>(most * block_elements, n);
  selection.granularity = block_elements;
  selection.num_overflowed = 0;
  WorkspaceScope const scope(*ctx.workspace);
  Workspace& workspace = *ctx.workspace;
  std::span<Cut<std::uint64_t>> const cut = workspace.take<Cut<std::uint64_t>>(1);
  std::span<std::uint32_t> const counts = workspace.take<std::uint32_t>(kNumBuckets);
  std::span<SelectTile> const tiles = workspace.take<SelectTile>(num_tiles);
  std::span<std::uint64_t> const norms = workspace.take<std::uint64_t>(num_blocks);
  if (cut.empty() || counts.empty() || tiles.size() != num_tiles || norms.size() != num_blocks) {
    keep_failure(ctx, kWorkspaceTooSmall);
    return 0;
  }
  fill(ctx, counts.data(), 0, counts.size_bytes());
  launch(ctx, 1, 1, 0, begin_cut_kernel, cut.data(), k, num_blocks);
  with_corrected(gradient, residual, [&]<typename T>(CorrectedTile<T> const& corrected) {
    launch(ctx, grid_of(divide_up(num_blocks * kNormLanes, NormPolicy::threads)),
           NormPolicy::threads, 0, norm_kernel<T>, corrected, n, block_elements, norm, norms.data(),
           num_blocks, ctx.words);
  });
  NormSource const source = {norms.data(), num_blocks};
  std::uint64_t const capacity = selection.indices.size();
  refine_cut(ctx, source, num_blocks, cut.data(), counts.data());
  launch(ctx, grid_of_tiles(num_tiles), SelectPolicy::threads, 0, count_tiles_kernel<NormSource>,
         source, cut.data(), tiles.data(), num_tiles);
  launch(ctx, 1, ScanPolicy::threads, 0, place_tiles_kernel<std::uint64_t>, cut.data(),
         tiles.data(), num_tiles, capacity, selection.counts);
  BlockWriter const writer = {selection.indices.data()};
  launch(ctx, grid_of_tiles(num_tiles), SelectPolicy::threads, 0,
         place_kernel<NormSource, BlockWriter>, source, writer, cut.data(), tiles.data(), num_tiles,
         capacity);
  take(ctx, {selection.indices.first(most), &selection.counts->num_indices}, block_elements,
       residual.out, selection.values);
  launch(ctx, 1, 1, 0, count_values_kernel, selection.indices.data(), n, block_elements,
         selection.counts);
  return 0;
}

}  // namespace gradsieve::kernels::cuda
