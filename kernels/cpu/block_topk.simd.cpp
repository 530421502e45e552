// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/block_topk.simd.hpp"

#include "kernels/cpu/corrected_lanes.hpp"
#include "kernels/cpu/lane_sums.hpp"

namespace gradsieve::kernels::cpu {
namespace {

template <typename Source>
std::uint32_t square_blocks(Source const& made_of, std::uint64_t num_blocks,
                            std::uint64_t block_elements, float* residual_out, double* norms) {
  Source const source = made_of;  // by value: what is written might otherwise be its fields
  Words non_finite = {};
  std::uint64_t begin = 0;
  for (std::uint64_t block = 0; block < num_blocks; ++block) {
    LaneSums<Summand::square> sum;
    for (std::uint64_t const end = begin + block_elements; begin < end; begin += 32) {
      float* const c = residual_out + begin;
      for (std::uint32_t i = 0; i < 32; i += kLanes) store(source.at(begin + i, non_finite), c + i);
      for (std::uint32_t i = 0; i < 32; i += 8) sum.add_eight(c + i);
    }
    norms[block] = sum.total();
  }
  return mask_above(Words{}, non_finite);
}

template <ElementType kType>
std::uint32_t square_blocks_of(void const* gradient, float const* residual_in, float carry,
                               std::uint64_t num_blocks, std::uint64_t block_elements,
                               float* residual_out, double* norms) {
  if (residual_in == nullptr) {
    return square_blocks(Corrected<kType, false>(gradient, nullptr, carry), num_blocks,
                         block_elements, residual_out, norms);
  }
  return square_blocks(Corrected<kType, true>(gradient, residual_in, carry), num_blocks,
                       block_elements, residual_out, norms);
}

}  // namespace

namespace GRADSIEVE_TARGET {

std::uint32_t compensate_square_blocks(void const* gradient, ElementType type,
                                       float const* residual_in, float carry,
                                       std::uint64_t num_blocks, std::uint64_t block_elements,
                                       float* residual_out, double* norms) {
  auto const run = type == ElementType::f16    ? square_blocks_of<ElementType::f16>
                   : type == ElementType::bf16 ? square_blocks_of<ElementType::bf16>
                                               : square_blocks_of<ElementType::f32>;
  return run(gradient, residual_in, carry, num_blocks, block_elements, residual_out, norms);
}

}  // namespace GRADSIEVE_TARGET
}  // namespace gradsieve::kernels::cpu
