// SPDX-License-Identifier: Apache-2.0
#include "sparsifiers/blocktopk.hpp"

#include <vector>

namespace gradsieve {
namespace {

std::vector<ParamInfo> blocktopk_params() {
  std::vector<ParamInfo> params = DensityRamp::params();
  params.push_back({.name = "block",
                    .type = ParamType::integer,
                    .unit = "elements",
                    .default_value = "256",
                    .min = 1.0,
                    .max = 4096.0,
                    .summary = "elements that travel together"});
  params.push_back({.name = "norm",
                    .type = ParamType::choice,
                    .default_value = "l2",
                    .choices = {"l2", "linf"},
                    .summary = "by what blocks are ranked"});
  return with_hold(std::move(params));
}

}  // namespace

BlocktopkSparsifier::BlocktopkSparsifier(Params const& params)
    : density_(params),
      block_elements_(static_cast<std::uint64_t>(params.integer("block"))),
      norm_(params.choice("norm") == "l2" ? kernels::BlockNorm::l2 : kernels::BlockNorm::linf) {
  refuse_hold("blocktopk", params);
}

Claims BlocktopkSparsifier::claims() const noexcept {
  double const share = density_.least_fraction();
  if (norm_ == kernels::BlockNorm::l2) return {.cuda = true, .contraction = share};
  // A chosen block has at least the square of the smallest chosen maximum, any other at most
  // `block` times that.
  double const others = (1.0 - share) * static_cast<double>(block_elements_);
  return {.cuda = true, .contraction = share / (share + others)};
}

std::uint64_t BlocktopkSparsifier::num_blocks(TensorInfo const& piece) const noexcept {
  return (piece.num_elements + block_elements_ - 1) / block_elements_;
}

std::uint64_t BlocktopkSparsifier::capacity_indices(TensorInfo const& piece) const noexcept {
  return density_.max_count(num_blocks(piece));
}

std::uint64_t BlocktopkSparsifier::settled_indices(TensorInfo const& piece) const noexcept {
  return density_.settled_count(num_blocks(piece));
}

std::size_t BlocktopkSparsifier::workspace_bytes(TensorInfo const& piece) const noexcept {
  return kernels::block_topk_workspace_bytes(piece.num_elements, block_elements_,
                                             capacity_indices(piece));
}

// How many blocks is known; how many elements depends on whether the last one, which may be short,
// is among them.
bool BlocktopkSparsifier::fills_capacity(TensorInfo const& piece) const noexcept {
  return settled_indices(piece) == capacity_indices(piece);
}

std::uint64_t BlocktopkSparsifier::step_word(TensorInfo const& piece,
                                             StepWords const& words) const noexcept {
  return density_.count(num_blocks(piece), words.step);
}

Status BlocktopkSparsifier::do_select(ExecContext const& ctx, TensorInfo const& piece,
                                      ConstTensorView gradient, ResidualView residual, StateView,
                                      SparseView& selection) const noexcept {
  auto const k = ctx.backend == Backend::cuda
                     ? StepValue<std::uint64_t>::in_word(ctx.piece_word)
                     : StepValue<std::uint64_t>(step_word(piece, *ctx.words));
  raise_flags(ctx,
              kernels::block_topk(ctx, gradient, residual, block_elements_, norm_, k, selection));
  return {};
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_SPARSIFIER(
    blocktopk, BlocktopkSparsifier,
    PluginInfo{.name = "blocktopk",
               .kind = PluginKind::sparsifier,
               .summary = "Chooses the blocks of largest norm and sends them whole.",
               .paper = "Fei et al., SIGCOMM 2021, DOI 10.1145/3452296.3472904",
               .params = blocktopk_params(),
               .positional = "density"});
