// SPDX-License-Identifier: Apache-2.0
#include "sparsifiers/threshold.hpp"

#include <algorithm>
#include <bit>

#include "kernels/ops.hpp"
#include "sparsifiers/density.hpp"

namespace gradsieve {
namespace {

// Within normal f32: a threshold that rounds to 0 or to infinity would mean something else.
constexpr double kSmallest = 1e-37;
constexpr double kLargest = 1e38;

}  // namespace

ThresholdSparsifier::ThresholdSparsifier(Params const& params)
    : value_(static_cast<float>(params.real("value"))), max_density_(params.real("max_density")) {
  refuse_hold("threshold", params);
}

std::uint64_t ThresholdSparsifier::capacity_indices(TensorInfo const& piece) const noexcept {
  return count_of(max_density_, piece.num_elements);
}

// In units of the true gradient: a loss scale must not change what passes. The product stays a
// threshold: 0 would let everything pass, and infinity nothing.
float ThresholdSparsifier::threshold(StepWords const& words) const noexcept {
  return std::clamp(value_ * words.loss_scale, static_cast<float>(kSmallest),
                    static_cast<float>(kLargest));
}

std::uint64_t ThresholdSparsifier::step_word(TensorInfo const&,
                                             StepWords const& words) const noexcept {
  return std::bit_cast<std::uint32_t>(threshold(words));  // the float stands in the low half
}

Status ThresholdSparsifier::do_select(ExecContext const& ctx, TensorInfo const& piece,
                                      ConstTensorView gradient, ResidualView residual, StateView,
                                      SparseView& selection) const noexcept {
  SparseView room = selection;
  room.indices = selection.indices.first(capacity_indices(piece));
  auto const value = ctx.backend == Backend::cuda
                         ? StepValue<float>::in_word(reinterpret_cast<float const*>(ctx.piece_word))
                         : StepValue<float>(threshold(*ctx.words));
  raise_flags(ctx, kernels::threshold(ctx, gradient, residual, value, room));
  selection.num_indices = room.num_indices;
  selection.num_values = room.num_values;
  selection.num_overflowed = room.num_overflowed;
  return {};
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_SPARSIFIER(
    threshold, ThresholdSparsifier,
    PluginInfo{.name = "threshold",
               .kind = PluginKind::sparsifier,
               .summary = "Chooses every element whose magnitude has reached a threshold.",
               .paper = "Strom, INTERSPEECH 2015",
               .params = with_hold(
                   {{.name = "value",
                     .type = ParamType::real,
                     .unit = "units of the true gradient",
                     .default_value = "0.001",
                     .min = kSmallest,
                     .max = kLargest,
                     .summary = "least magnitude that travels"},
                    {.name = "max_density",
                     .type = ParamType::real,
                     .unit = "fraction",
                     .default_value = "0.1",
                     .min = 0.0,
                     .max = 1.0,
                     .min_excluded = true,
                     .summary = "most that travels in a step; the rest stays in the residual"}}),
               .positional = "value"});
