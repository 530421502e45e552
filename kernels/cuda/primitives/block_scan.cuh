// SPDX-License-Identifier: Apache-2.0
// Sums over the threads of a block, by CUB.
#pragma once

#include <cub/block/block_scan.cuh>

namespace gradsieve::kernels::cuda {

/// Sum over the threads before this one; `total` is that of all. All threads of the block call it.
/// Ends with a barrier, so that it may be called again.
template <unsigned kThreads, typename T>
__device__ T scan_block(T own, T& total) {
  using Scan = cub::BlockScan<T, static_cast<int>(kThreads), cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage storage;
  T before;
  Scan(storage).ExclusiveSum(own, before, total);
  __syncthreads();
  return before;
}

}  // namespace gradsieve::kernels::cuda
