// SPDX-License-Identifier: Apache-2.0
// One pass makes c and counts, a scan over the tiles makes places of the counts, and a second pass
// looks for what is to be sent in the tiles that have any.
#include "kernels/cuda/corrected_tile.cuh"
#include "kernels/cuda/element_source.cuh"
#include "kernels/ops.hpp"
#include "kernels/select_layout.hpp"

namespace gradsieve::kernels::cuda {
namespace {

constexpr unsigned kItems = TilePolicy::items_per_thread;

template <bool kAligned, typename T>
__global__ void __launch_bounds__(TilePolicy::threads, TilePolicy::min_blocks)
    threshold_kernel(CorrectedTile<T> source, std::uint64_t num_elements,
                     StepValue<float> threshold, Cut<std::uint32_t>* cut, SelectTile* tiles,
                     StepWords* words) {
  source.begin();
  std::uint32_t const least = magnitude_of(threshold.get());
  // What lies above the magnitude below the threshold, and no ties.
  if (blockIdx.x == 0 && threadIdx.x == 0) *cut = {least - 1, least - 1, 0, 1, 0};
  bool non_finite = false;
  std::uint64_t const num_tiles = divide_up(num_elements, kSelectTile);
  for (std::uint64_t tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
    std::uint64_t const begin = tile * kSelectTile;
    auto const size = static_cast<unsigned>(min(num_elements - begin, std::uint64_t{kSelectTile}));
    Pack<float, 4> c[kItems];
    source.template read<kAligned>(begin, size, c, non_finite);
    std::uint64_t count = 0;
#pragma unroll
    for (unsigned item = 0; item < kItems; ++item) {
      QuadPlace const at(item, size);
#pragma unroll
      for (unsigned lane = 0; lane < 4; ++lane) {
        count += lane < at.count && magnitude_of(c[item].at[lane]) >= least ? 1U : 0U;
      }
      store_quad<kAligned>(source.residual_out + begin + at.first, c[item], at.count);
    }
    std::uint64_t total;
    static_cast<void>(scan_block<TilePolicy::threads>(count, total));
    if (threadIdx.x == 0) {
      SelectTile record = {};
      record.num_above = static_cast<std::uint32_t>(total);
      tiles[tile] = record;
    }
  }
  raise(words, kStepNonFinite, non_finite);
}

}  // namespace

Flags threshold(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                StepValue<float> threshold, SparseView& selection) noexcept {
  std::uint64_t const n = gradient.num_elements;
  std::uint64_t const num_tiles = num_tiles_of(n);
  std::uint64_t const capacity = selection.indices.size();
  selection.num_indices = std::min(n, capacity);
  selection.num_values = selection.num_indices;
  selection.granularity = 1;
  selection.num_overflowed = n - selection.num_indices;
  WorkspaceScope const scope(*ctx.workspace);
  std::span<Cut<std::uint32_t>> const cut = ctx.workspace->take<Cut<std::uint32_t>>(1);
  std::span<SelectTile> const tiles = ctx.workspace->take<SelectTile>(num_tiles);
  if (cut.empty() || tiles.size() != num_tiles) {
    keep_failure(ctx, kWorkspaceTooSmall);
    return 0;
  }
  float* const c = residual.out.data();
  with_corrected(gradient, residual, [&]<typename T>(CorrectedTile<T> const& corrected) {
    auto* const kernel =
        corrected.is_aligned() ? threshold_kernel<true, T> : threshold_kernel<false, T>;
    launch(ctx, grid_of(num_tiles), TilePolicy::threads, 0, kernel, corrected, n, threshold,
           cut.data(), tiles.data(), ctx.words);
  });
  launch(ctx, 1, ScanPolicy::threads, 0, place_tiles_kernel<std::uint32_t>, cut.data(),
         tiles.data(), num_tiles, capacity, selection.counts);
  ElementWriter const writer = {selection.indices.data(), selection.values.data(), c};
  launch(ctx, grid_of_tiles(num_tiles), SelectPolicy::threads, 0,
         place_kernel<ElementSource, ElementWriter>, ElementSource{c, n}, writer, cut.data(),
         tiles.data(), num_tiles, capacity);
  return 0;
}

}  // namespace gradsieve::kernels::cuda
