// SPDX-License-Identifier: Apache-2.0
// A chain with a sparsifier for many small pieces on a device: one launch chooses from all of them,
// one more decodes them, and one each way is the value codec's.
#pragma once

#include <memory>
#include <vector>

#include "compressors/batches.hpp"
#include "kernels/many_sparse_ops.hpp"

namespace gradsieve {

struct SparseBatchPlan {
  kernels::HeldRule rule = kernels::HeldRule::topk;
  std::vector<kernels::SparseSegment> segments;
  std::uint64_t num_indices = 0;        ///< room of all segments
  std::uint64_t num_values = 0;         ///< room of all segments
  std::shared_ptr<Batch const> values;  ///< null: the values are f32 in the bodies
};

[[nodiscard]] std::shared_ptr<Batch const> make_sparse_batch(ExecContext const& ctx,
                                                             SparseBatchPlan plan,
                                                             MemoryResource& memory);

}  // namespace gradsieve
