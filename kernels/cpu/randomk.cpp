// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/feedback.simd.hpp"
#include "kernels/cpu/simd_dispatch.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cpu {
namespace {

/// The borders ⌊j·n/k⌋ of the strata, one after the other and without dividing.
class StratumBorders {
 public:
  StratumBorders(std::uint64_t num_elements, std::uint64_t k, std::uint64_t first) noexcept
      : quotient_(num_elements / k),
        remainder_(num_elements % k),
        k_(k),
        border_(first * num_elements / k),
        rest_(first * num_elements % k) {}

  [[nodiscard]] std::uint64_t border() const noexcept { return border_; }
  void advance() noexcept {
    rest_ += remainder_;
    bool const carries = rest_ >= k_;
    border_ += quotient_ + (carries ? 1 : 0);
    rest_ -= carries ? k_ : 0;
  }

 private:
  std::uint64_t quotient_;
  std::uint64_t remainder_;
  std::uint64_t k_;
  std::uint64_t border_;
  std::uint64_t rest_;
};

}  // namespace

void randomk(ExecContext const& ctx, PhiloxKey const& key, StepValue<std::uint64_t> step,
             std::uint64_t num_elements, std::span<std::uint32_t> indices) noexcept {
  auto* const draw = GRADSIEVE_PICK(random_rows);
  constexpr std::uint64_t kRowStrata = 512;  // four words of 32 bits per block
  for_chunks(ctx, indices.size(), kRowStrata, [&](std::uint64_t begin, std::uint64_t end) {
    std::uint16_t halves[2 * kRowStrata + kRandomSlack];
    draw(key.low, key.high, step, begin / 4, (end - begin + 3) / 4, halves);
    StratumBorders strata(num_elements, indices.size(), begin);
    for (std::uint64_t j = begin; j < end; ++j) {
      std::uint64_t const start = strata.border();
      strata.advance();
      std::uint64_t const low = halves[2 * (j - begin)];
      std::uint64_t const high = halves[2 * (j - begin) + 1];
      std::uint64_t const size = strata.border() - start;
      indices[j] = static_cast<std::uint32_t>(start + (((high << 16) | low) * size >> 32));
    }
  });
}

}  // namespace gradsieve::kernels::cpu
