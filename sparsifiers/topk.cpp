// SPDX-License-Identifier: Apache-2.0
#include "sparsifiers/topk.hpp"

#include "kernels/ops.hpp"

namespace gradsieve {

TopkSparsifier::TopkSparsifier(Params const& params) : density_(params) {
  refuse_hold("topk", params);
}

Claims TopkSparsifier::claims() const noexcept {
  return {.fixed_rate = true, .cuda = true, .contraction = density_.least_fraction()};
}

std::uint64_t TopkSparsifier::capacity_indices(TensorInfo const& piece) const noexcept {
  return density_.max_count(piece.num_elements);
}

std::uint64_t TopkSparsifier::settled_indices(TensorInfo const& piece) const noexcept {
  return density_.settled_count(piece.num_elements);
}

std::size_t TopkSparsifier::workspace_bytes(TensorInfo const& piece) const noexcept {
  return kernels::topk_workspace_bytes(piece.num_elements, capacity_indices(piece));
}

std::uint64_t TopkSparsifier::step_word(TensorInfo const& piece,
                                        StepWords const& words) const noexcept {
  return density_.count(piece.num_elements, words.step);
}

Status TopkSparsifier::do_select(ExecContext const& ctx, TensorInfo const& piece,
                                 ConstTensorView gradient, ResidualView residual, StateView,
                                 SparseView& selection) const noexcept {
  auto const k = ctx.backend == Backend::cuda
                     ? StepValue<std::uint64_t>::in_word(ctx.piece_word)
                     : StepValue<std::uint64_t>(step_word(piece, *ctx.words));
  raise_flags(ctx, kernels::topk(ctx, gradient, residual, k, selection));
  return {};
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_SPARSIFIER(
    topk, TopkSparsifier,
    PluginInfo{
        .name = "topk",
        .kind = PluginKind::sparsifier,
        .summary = "Chooses the elements of largest magnitude, exactly as many as asked for.",
        .paper = "Aji and Heafield, EMNLP 2017, arXiv:1704.05021; warm-up: Lin et al., "
                 "ICLR 2018, arXiv:1712.01887",
        .params = with_hold(DensityRamp::params()),
        .positional = "density"});
