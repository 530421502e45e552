// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <numeric>

#include "kernels/cpu/element_type.hpp"
#include "kernels/cpu/sign.simd.hpp"
#include "kernels/cpu/simd_dispatch.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cpu {
namespace {

// The elements of a chunk are a multiple of eight, so that no two chunks share a byte of a plane.
std::uint64_t blocks_per_chunk(std::uint64_t block_elements) noexcept {
  std::uint64_t const unit = 8 / std::gcd(block_elements, std::uint64_t{8});
  std::uint64_t const blocks = std::max<std::uint64_t>(kGrainElements / block_elements, 1);
  return (blocks + unit - 1) / unit * unit;
}

unsigned char* bytes_of(std::span<std::byte> plane, std::uint64_t element) noexcept {
  return reinterpret_cast<unsigned char*>(plane.data()) + element / 8;
}

unsigned char const* bytes_of(std::byte const* bytes) noexcept {
  return reinterpret_cast<unsigned char const*>(bytes);
}

struct Planes {
  std::uint64_t block_elements;
  std::span<std::byte> signs;
  std::span<std::byte> zeros;
  std::span<float> scales;
  std::span<float> residual;
};

// body(run, begin) for runs of whole blocks.
template <typename Body>
void for_runs(ExecContext const& ctx, Planes const& planes, std::uint64_t num_elements,
              Body const& body) noexcept {
  std::uint64_t const block_elements = planes.block_elements;
  std::uint64_t const num_blocks =
      num_elements / block_elements + (num_elements % block_elements != 0 ? 1 : 0);
  for_chunks(ctx, num_blocks, blocks_per_chunk(block_elements),
             [&](std::uint64_t first, std::uint64_t last) {
               std::uint64_t const begin = first * block_elements;
               std::uint64_t const end = last == num_blocks ? num_elements : last * block_elements;
               SignRun const run = {
                   .num_elements = end - begin,
                   .block_elements = block_elements,
                   .signs = bytes_of(planes.signs, begin),
                   .zeros = bytes_of(planes.zeros, begin),
                   .scales = planes.scales.data() + first,
                   .residual = planes.residual.empty() ? nullptr : planes.residual.data() + begin,
               };
               body(run, begin);
             });
}

}  // namespace

void sign(ExecContext const& ctx, std::span<float const> corrected, std::uint64_t block_elements,
          std::span<std::byte> signs, std::span<std::byte> zeros, std::span<float> scales,
          std::span<float> residual, std::uint32_t* any_zero) noexcept {
  auto* const sign_blocks = GRADSIEVE_PICK(sign_run);
  std::atomic<bool> has_zero = false;
  for_runs(ctx, {block_elements, signs, zeros, scales, residual}, corrected.size(),
           [&](SignRun const& run, std::uint64_t begin) {
             if (sign_blocks(run, corrected.data() + begin)) {
               has_zero.store(true, std::memory_order_relaxed);
             }
           });
  if (has_zero.load(std::memory_order_relaxed)) *any_zero = 1;
}

Flags sign_fused(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                 std::uint64_t block_elements, std::span<std::byte> signs,
                 std::span<std::byte> zeros, std::span<float> scales,
                 std::uint32_t* any_zero) noexcept {
  auto* const sign_blocks = GRADSIEVE_PICK(sign_fused_run);
  std::atomic<bool> has_zero = false;
  std::atomic<bool> is_nonfinite = false;
  for_runs(ctx, {block_elements, signs, zeros, scales, residual.out}, gradient.num_elements,
           [&](SignRun const& run, std::uint64_t begin) {
             float const* const carried =
                 residual.in.empty() ? nullptr : residual.in.data() + begin;
             SignFindings const found =
                 sign_blocks(run, gradient.slice(begin, run.num_elements).data,
                             element_type(gradient.dtype), carried, residual.carry);
             if (found.any_zero) has_zero.store(true, std::memory_order_relaxed);
             if (found.any_nonfinite) is_nonfinite.store(true, std::memory_order_relaxed);
           });
  if (has_zero.load(std::memory_order_relaxed)) *any_zero = 1;
  return is_nonfinite.load(std::memory_order_relaxed) ? kStepNonFinite : 0;
}

void sign_add(ExecContext const& ctx, std::byte const* signs, std::byte const* zeros,
              std::byte const* scales, std::uint64_t block_elements, float weight,
              std::span<float> accumulator) noexcept {
  auto* const sign_add_chunk = GRADSIEVE_PICK(sign_add_run);
  for_chunks(ctx, accumulator.size(), kGrainElements, [&](std::uint64_t begin, std::uint64_t end) {
    sign_add_chunk(bytes_of(signs), bytes_of(zeros), bytes_of(scales), block_elements, weight,
                   accumulator.data(), begin, end);
  });
}

}  // namespace gradsieve::kernels::cpu
