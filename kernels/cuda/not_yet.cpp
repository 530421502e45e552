// SPDX-License-Identifier: Apache-2.0
// The kernels that have no CUDA form yet: they report it and do nothing.
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

void refuse(ExecContext const& ctx) noexcept {
  if (ctx.device_error != nullptr && ctx.device_error->ok()) {
    *ctx.device_error = {Code::not_built, "this kernel has no CUDA form yet"};
  }
}

}  // namespace

Flags topk(ExecContext const& ctx, ConstTensorView, ResidualView, StepValue<std::uint64_t>,
           SparseView&) noexcept {
  refuse(ctx);
  return 0;
}
Flags threshold(ExecContext const& ctx, ConstTensorView, ResidualView, StepValue<float>,
                SparseView&) noexcept {
  refuse(ctx);
  return 0;
}
Flags block_topk(ExecContext const& ctx, ConstTensorView, ResidualView, std::uint64_t, BlockNorm,
                 StepValue<std::uint64_t>, SparseView&) noexcept {
  refuse(ctx);
  return 0;
}
void randomk(ExecContext const& ctx, PhiloxKey const&, StepValue<std::uint64_t>, std::uint64_t,
             std::span<std::uint32_t>) noexcept {
  refuse(ctx);
}
void bitmap_encode(ExecContext const& ctx, IndexSpan, std::uint64_t,
                   std::span<std::byte>) noexcept {
  refuse(ctx);
}
bool bitmap_decode(ExecContext const& ctx, std::span<std::byte const>, std::uint64_t,
                   std::span<std::uint32_t>) noexcept {
  refuse(ctx);
  return true;
}
void elias_fano_encode(ExecContext const& ctx, IndexSpan, std::uint64_t,
                       std::span<std::byte>) noexcept {
  refuse(ctx);
}
bool elias_fano_decode(ExecContext const& ctx, std::span<std::byte const>, std::uint64_t,
                       std::span<std::uint32_t>) noexcept {
  refuse(ctx);
  return true;
}

}  // namespace gradsieve::kernels::cuda
