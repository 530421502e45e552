// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/dequantize.cuh"
#include "kernels/cuda/quantize_run.cuh"
#include "kernels/cuda/stream.cuh"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

template <bool kAligned, typename Source>
__global__ void __launch_bounds__(TilePolicy::threads, TilePolicy::min_blocks)
    quantize_kernel(Coding coding, Source source, std::uint64_t num_runs) {
  extern __shared__ std::uint32_t block_words[];
  coding.key.step = coding.key.step.get();
  source.begin();
  bool non_finite = false;
  for (std::uint64_t run = blockIdx.x; run < num_runs; run += gridDim.x) {
    quantize_run<kAligned>(coding, source, run, block_words, non_finite);
  }
  raise(coding.words, kStepNonFinite, non_finite);
}

template <typename Source>
void launch_quantize(ExecContext const& ctx, Coding const& coding, Source const& source,
                     bool is_aligned) noexcept {
  if (coding.num_elements == 0) return;
  std::uint64_t const num_runs = divide_up(coding.num_elements, coding.run_elements);
  auto* const kernel = is_aligned ? quantize_kernel<true, Source> : quantize_kernel<false, Source>;
  launch(ctx, grid_of(num_runs), TilePolicy::threads, run_shared_bytes(coding.block_elements),
         kernel, coding, source, num_runs);
}

Coding coding_of(std::uint64_t num_elements, int bits, std::uint64_t block_elements,
                 Rounding rounding, RoundingKey const& key, std::span<std::byte> codes,
                 std::span<float> scales, std::span<float> residual, StepWords* words) noexcept {
  return {.num_elements = num_elements,
          .run_elements = run_elements(block_elements),
          .block_elements = static_cast<unsigned>(block_elements),
          .bits = bits,
          .is_stochastic = rounding == Rounding::stochastic,
          .key = key,
          .codes = codes.data(),
          .scales = scales.data(),
          .residual = residual.empty() ? nullptr : residual.data(),
          .words = words};
}

template <typename... T>
bool can_use_quads(Coding const& coding, T const*... arrays) noexcept {
  auto const codes = reinterpret_cast<std::uintptr_t>(coding.codes);
  return coding.run_elements % 4 == 0 && codes % (coding.bits == 8 ? 4 : 2) == 0 &&
         is_quad_aligned(coding.residual) && (is_quad_aligned(arrays) && ...);
}

}  // namespace

void quantize(ExecContext const& ctx, std::span<float const> corrected, int bits,
              std::uint64_t block_elements, Rounding rounding, RoundingKey const& key,
              std::span<std::byte> codes, std::span<float> scales,
              std::span<float> residual) noexcept {
  Coding const coding = coding_of(corrected.size(), bits, block_elements, rounding, key, codes,
                                  scales, residual, nullptr);
  launch_quantize(ctx, coding, CorrectedSource{corrected.data()},
                  can_use_quads(coding, corrected.data()));
}

// Also a run that is read twice may have its residual in place of e: a tile is written right after
// it was read for the second time, by the same threads.
Flags quantize_fused(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                     int bits, std::uint64_t block_elements, Rounding rounding,
                     RoundingKey const& key, std::span<std::byte> codes,
                     std::span<float> scales) noexcept {
  Coding const coding = coding_of(gradient.num_elements, bits, block_elements, rounding, key, codes,
                                  scales, residual.out, ctx.words);
  float const* const in = residual.in.empty() ? nullptr : residual.in.data();
  with_elements(gradient, [&]<typename T>(T const* elements) {
    launch_quantize(ctx, coding, FusedSource<T>{elements, in, residual.carry},
                    can_use_quads(coding, elements, in));
  });
  return 0;
}

void dequantize_add(ExecContext const& ctx, std::span<std::byte const> codes,
                    std::byte const* scales, int bits, std::uint64_t block_elements, float weight,
                    std::span<float> accumulator) noexcept {
  DequantizeAdd const operation = {
      {ctx.only_if},      codes.data(), BlockScales(scales, block_elements),
      accumulator.data(), weight,       bits};
  auto const code_address = reinterpret_cast<std::uintptr_t>(codes.data());
  add_rows(ctx, operation, accumulator.size(),
           is_quad_aligned(accumulator.data()) && code_address % (bits == 8 ? 4 : 2) == 0);
}

}  // namespace gradsieve::kernels::cuda
