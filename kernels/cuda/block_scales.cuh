// SPDX-License-Identifier: Apache-2.0
// The scales of a payload's blocks, found by the number of an element and read at any alignment.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/element.cuh"

namespace gradsieve::kernels::cuda {

/// i / divisor, by a shift where that does.
struct Divisor {
  std::uint64_t divisor;
  int shift;  ///< negative: none

  __host__ __device__ explicit Divisor(std::uint64_t by) noexcept
      : divisor(by), shift(std::has_single_bit(by) ? std::countr_zero(by) : -1) {}
  [[nodiscard]] __device__ std::uint64_t quotient(std::uint64_t i) const {
    return shift >= 0 ? i >> shift : i / divisor;
  }
};

class BlockScales {
 public:
  __host__ __device__ BlockScales(std::byte const* scales, std::uint64_t block_elements) noexcept
      : scales_(scales),
        block_elements_(block_elements),
        is_aligned_(reinterpret_cast<std::uintptr_t>(scales) % sizeof(float) == 0) {}

  /// A row of elements that starts at a multiple of its length has one scale.
  [[nodiscard]] __device__ bool has_whole_rows(unsigned row_elements) const {
    return block_elements_.divisor % row_elements == 0;
  }
  /// Of the elements i ... i + kWidth − 1; one access where they have one scale.
  template <int kWidth>
  [[nodiscard]] __device__ Pack<float, kWidth> at(std::uint64_t i) const {
    Pack<float, kWidth> result;
    std::uint64_t const first = block_elements_.quotient(i);
    std::uint64_t const last = kWidth == 1 ? first : block_elements_.quotient(i + kWidth - 1);
    result.at[0] = of_block(first);
#pragma unroll
    for (int lane = 1; lane < kWidth; ++lane) {
      result.at[lane] = first == last
                            ? result.at[0]
                            : of_block(block_elements_.quotient(i + static_cast<unsigned>(lane)));
    }
    return result;
  }

 private:
  [[nodiscard]] __device__ float of_block(std::uint64_t block) const {
    std::byte const* const place = scales_ + block * sizeof(float);
    if (is_aligned_) return *reinterpret_cast<float const*>(place);
    std::uint32_t word = 0;
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      word |= static_cast<std::uint32_t>(place[byte]) << (8 * byte);
    }
    return __uint_as_float(word);
  }

  std::byte const* scales_;
  Divisor block_elements_;
  bool is_aligned_;
};

}  // namespace gradsieve::kernels::cuda
