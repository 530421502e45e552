// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>

#include "kernels/cpu/element_type.hpp"
#include "kernels/cpu/quantize.simd.hpp"
#include "kernels/cpu/simd_dispatch.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cpu {
namespace {

struct Coding {
  int bits;
  std::uint64_t block_elements;
  Rounding rounding;
  RoundingKey key;
  std::span<std::byte> codes;
  std::span<float> scales;
  std::span<float> residual;
};

// With an odd number of blocks of an odd number of elements, two chunks would share a byte of
// 4-bit codes.
std::uint64_t blocks_per_chunk(std::uint64_t block_elements) noexcept {
  std::uint64_t const blocks = std::max<std::uint64_t>(kGrainElements / block_elements, 1);
  return block_elements % 2 == 0 ? blocks : blocks + blocks % 2;
}

QuantizerRun run_of(Coding const& coding, std::uint64_t first_block, std::uint64_t begin,
                    std::uint64_t end) noexcept {
  auto* const codes = reinterpret_cast<unsigned char*>(coding.codes.data());
  return {.num_elements = end - begin,
          .block_elements = coding.block_elements,
          .bits = coding.bits,
          .is_stochastic = coding.rounding == Rounding::stochastic,
          .key = {coding.key.key.low, coding.key.key.high, coding.key.step},
          .first_element = coding.key.first_element + begin,
          .codes = codes + (coding.bits == 8 ? begin : begin / 2),
          .scales = coding.scales.data() + first_block,
          .residual = coding.residual.empty() ? nullptr : coding.residual.data() + begin};
}

// body(run, begin) for runs of whole blocks.
template <typename Body>
void for_runs(ExecContext const& ctx, Coding const& coding, std::uint64_t num_elements,
              Body const& body) noexcept {
  std::uint64_t const num_blocks =
      num_elements / coding.block_elements + (num_elements % coding.block_elements != 0 ? 1 : 0);
  for_chunks(ctx, num_blocks, blocks_per_chunk(coding.block_elements),
             [&](std::uint64_t first, std::uint64_t last) {
               std::uint64_t const begin = first * coding.block_elements;
               std::uint64_t const end =
                   last == num_blocks ? num_elements : last * coding.block_elements;
               body(run_of(coding, first, begin, end), begin);
             });
}

}  // namespace

void quantize(ExecContext const& ctx, std::span<float const> corrected, int bits,
              std::uint64_t block_elements, Rounding rounding, RoundingKey const& key,
              std::span<std::byte> codes, std::span<float> scales,
              std::span<float> residual) noexcept {
  auto* const quantize_blocks = GRADSIEVE_PICK(quantize_run);
  Coding const coding = {bits, block_elements, rounding, key, codes, scales, residual};
  for_runs(ctx, coding, corrected.size(), [&](QuantizerRun const& run, std::uint64_t begin) {
    quantize_blocks(run, corrected.data() + begin);
  });
}

Flags quantize_fused(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                     int bits, std::uint64_t block_elements, Rounding rounding,
                     RoundingKey const& key, std::span<std::byte> codes,
                     std::span<float> scales) noexcept {
  auto* const quantize_blocks = GRADSIEVE_PICK(quantize_fused_run);
  Coding const coding = {bits, block_elements, rounding, key, codes, scales, residual.out};
  std::atomic<bool> is_nonfinite = false;
  for_runs(ctx, coding, gradient.num_elements, [&](QuantizerRun const& run, std::uint64_t begin) {
    float const* const carried = residual.in.empty() ? nullptr : residual.in.data() + begin;
    if (quantize_blocks(run, gradient.slice(begin, run.num_elements).data,
                        element_type(gradient.dtype), carried, residual.carry)) {
      is_nonfinite.store(true, std::memory_order_relaxed);
    }
  });
  return is_nonfinite.load(std::memory_order_relaxed) ? kStepNonFinite : 0;
}

void dequantize_add(ExecContext const& ctx, std::span<std::byte const> codes,
                    std::byte const* scales, int bits, std::uint64_t block_elements, float weight,
                    std::span<float> accumulator) noexcept {
  auto* const dequantize_chunk = GRADSIEVE_PICK(dequantize_add_run);
  for_chunks(ctx, accumulator.size(), kGrainElements, [&](std::uint64_t begin, std::uint64_t end) {
    dequantize_chunk(reinterpret_cast<unsigned char const*>(codes.data()),
                     reinterpret_cast<unsigned char const*>(scales), bits, block_elements, weight,
                     accumulator.data(), begin, end);
  });
}

}  // namespace gradsieve::kernels::cpu
