// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "kernels/cpu/element_type.hpp"
#include "kernels/cpu/select_pass.simd.hpp"
#include "kernels/cpu/simd_dispatch.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cpu {
namespace {

class Threshold {
 public:
  Threshold(ConstTensorView gradient, ResidualView residual, float threshold,
            SparseView& selection) noexcept
      : gradient_(gradient),
        residual_(residual),
        least_(std::bit_cast<std::uint32_t>(threshold)),
        selection_(selection) {}

  [[nodiscard]] Flags flags() const noexcept {
    return non_finite_.load(std::memory_order_relaxed) != 0 ? kStepNonFinite : 0;
  }

  /// Selects from [begin, end), to stand at `place` in the selection and behind; returns how many
  /// qualified. With `in_place` residual.out holds c already.
  std::uint64_t select(std::uint64_t begin, std::uint64_t end, std::uint64_t place,
                       bool in_place) noexcept {
    std::uint32_t indices[kPassElements + kSelectSlack];
    float values[kPassElements + kSelectSlack];
    std::uint64_t num_qualified = 0;
    for (std::uint64_t first = begin; first < end; first += kPassElements) {
      auto const count =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(kPassElements, end - first));
      SelectPass const pass = {
          .gradient = in_place ? nullptr : gradient_.slice(first, count).data,
          .residual_in = residual_.in.empty() ? nullptr : residual_.in.data() + first,
          .residual_out = residual_.out.data() + first,
          .carry = residual_.carry,
          .type = element_type(gradient_.dtype),
          .count = count,
          .first_index = static_cast<std::uint32_t>(first),
          .keep_from = least_,
          .zero_from = least_,
          .streams =
              streams_residual(residual_.in.data(), residual_.out.data(), gradient_.num_elements),
      };
      std::uint32_t non_finite = 0;
      std::uint32_t const found = select_(pass, indices, values, &non_finite);
      if (non_finite != 0) non_finite_.store(1, std::memory_order_relaxed);
      store(indices, values, found, place + num_qualified);
      num_qualified += found;
    }
    return num_qualified;
  }

 private:
  // What finds no room goes back to the residual.
  void store(std::uint32_t const* indices, float const* values, std::uint64_t count,
             std::uint64_t place) noexcept {
    std::uint64_t const capacity = selection_.indices.size();
    std::uint64_t const kept = std::min(count, capacity - std::min(capacity, place));
    if (kept != 0) {
      std::memcpy(selection_.indices.data() + place, indices, kept * sizeof(std::uint32_t));
      std::memcpy(selection_.values.data() + place, values, kept * sizeof(float));
    }
    for (std::uint64_t j = kept; j < count; ++j) residual_.out[indices[j]] = values[j];
  }

  ConstTensorView gradient_;
  ResidualView residual_;
  std::uint32_t least_;
  SparseView& selection_;
  decltype(&portable::select_block) select_ = GRADSIEVE_PICK(select_block);
  std::atomic<std::uint32_t> non_finite_ = 0;
};

}  // namespace

Flags threshold(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                StepValue<float> least, SparseView& selection) noexcept {
  float const threshold = least;
  Threshold run(gradient, residual, threshold, selection);
  std::uint64_t const n = gradient.num_elements;
  std::uint64_t num_qualified = 0;
  Flags flags = 0;
  if (!has_helpers(ctx) || n <= kGrainElements) {
    num_qualified = run.select(0, n, 0, false);
    flags = run.flags();
  } else {
    // Several threads have to know where their part of the selection begins: count first. That
    // reads c once more, which two threads make up for.
    constexpr std::uint64_t kMaxParts = 256;
    std::uint64_t const part = std::max(kGrainElements, (n + kMaxParts - 1) / kMaxParts);
    std::uint64_t places[kMaxParts + 1] = {};
    auto* const count = GRADSIEVE_PICK(count_from);
    flags = compensate(ctx, gradient, residual);
    for_chunks(ctx, n, part, [&](std::uint64_t begin, std::uint64_t end) {
      places[begin / part + 1] =
          count(residual.out.data() + begin, end - begin, std::bit_cast<std::uint32_t>(threshold));
    });
    std::uint64_t const num_parts = (n + part - 1) / part;
    for (std::uint64_t p = 0; p < num_parts; ++p) places[p + 1] += places[p];
    num_qualified = places[num_parts];
    for_chunks(ctx, n, part, [&](std::uint64_t begin, std::uint64_t end) {
      run.select(begin, end, places[begin / part], true);
    });
  }
  selection.num_indices = std::min<std::uint64_t>(num_qualified, selection.indices.size());
  selection.num_values = selection.num_indices;
  selection.granularity = 1;
  selection.num_overflowed = num_qualified - selection.num_indices;
  return flags;
}

}  // namespace gradsieve::kernels::cpu
