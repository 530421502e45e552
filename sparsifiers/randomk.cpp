// SPDX-License-Identifier: Apache-2.0
#include "sparsifiers/randomk.hpp"

#include "core/philox.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {

RandomkSparsifier::RandomkSparsifier(Params const& params)
    : density_(params),
      hold_steps_(static_cast<std::uint64_t>(params.integer("hold"))),
      rescales_(!params.with_feedback) {}

Claims RandomkSparsifier::claims() const noexcept {
  // No stratum is larger than n/k + 1, and an element is met with one over its stratum's size.
  double const share = density_.least_fraction();
  return {.fixed_rate = true,
          .unbiased = rescales_ && hold_steps_ == 1,
          .shared_indices = true,
          .cuda = !rescales_ && !density_.changes(),
          .contraction = rescales_ ? 0.0 : share / (1.0 + share)};
}

std::uint64_t RandomkSparsifier::capacity_indices(TensorInfo const& piece) const noexcept {
  return density_.max_count(piece.num_elements);
}

std::uint64_t RandomkSparsifier::settled_indices(TensorInfo const& piece) const noexcept {
  return density_.settled_count(piece.num_elements);
}

// A held set keeps its size, so both follow from the step at which it was drawn.
std::uint64_t RandomkSparsifier::num_shared(TensorInfo const& piece,
                                            std::uint64_t step) const noexcept {
  return density_.count(piece.num_elements, step - step % hold_steps_);
}

std::uint64_t RandomkSparsifier::step_word(TensorInfo const&,
                                           StepWords const& words) const noexcept {
  return words.step - words.step % hold_steps_;
}

Status RandomkSparsifier::shared_set(ExecContext const& ctx, TensorInfo const& piece, StateView,
                                     std::span<std::uint32_t> indices,
                                     std::uint64_t& num_indices) const noexcept {
  // On a device the density does not change (claims().cuda), so any step tells the size.
  bool const on_device = ctx.backend == Backend::cuda;
  num_indices = num_shared(piece, on_device ? 0 : ctx.words->step);
  if (indices.size() < num_indices) {
    return {Code::internal, "the set has no room for capacity_indices"};
  }
  PhiloxKey const key = shared_draw_key(ctx.seed, piece);
  auto const drawn_at = on_device ? StepValue<std::uint64_t>::in_word(ctx.piece_word)
                                  : StepValue<std::uint64_t>(step_word(piece, *ctx.words));
  kernels::randomk(ctx, key, drawn_at, piece.num_elements, indices.first(num_indices));
  return {};
}

void RandomkSparsifier::rescale(ExecContext const&, TensorInfo const& piece,
                                std::span<float> values) const noexcept {
  if (!rescales_) return;
  std::uint64_t const n = piece.num_elements;
  std::uint64_t const k = values.size();
  for (std::uint64_t j = 0; j < k; ++j) {
    std::uint64_t const stratum_elements = (j + 1) * n / k - j * n / k;
    values[j] *= static_cast<float>(stratum_elements);
  }
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_SPARSIFIER(
    randomk, RandomkSparsifier,
    PluginInfo{.name = "randomk",
               .kind = PluginKind::sparsifier,
               .summary = "Chooses one random element of each of k strata, the same on all ranks.",
               .paper = "Stich et al., NeurIPS 2018, arXiv:1809.07599; Wangni et al., NeurIPS "
                        "2018, arXiv:1710.09854",
               .params = with_hold(DensityRamp::params()),
               .positional = "density"});
