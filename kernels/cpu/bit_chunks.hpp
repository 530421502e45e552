// SPDX-License-Identifier: Apache-2.0
// Decoding a row of bits on several threads: where in the output a chunk belongs is known once the
// ones before it are counted.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/cpu/bits.simd.hpp"
#include "kernels/cpu/simd_dispatch.hpp"

namespace gradsieve::kernels::cpu {

class BitChunks {
 public:
  BitChunks(ExecContext const& ctx, unsigned char const* bytes, std::uint64_t num_bytes) noexcept
      : ctx_(ctx), num_bytes_(num_bytes) {
    std::uint64_t const share = (num_bytes + kMaxChunks - 1) / kMaxChunks;
    grain_bytes_ = std::max<std::uint64_t>(kMinChunkBytes, (share + 7) / 8 * 8);
    auto* const count = GRADSIEVE_PICK(count_ones);
    for_chunks(ctx_, num_bytes_, grain_bytes_, [&](std::uint64_t begin, std::uint64_t end) {
      ones_before_[begin / grain_bytes_ + 1] = count(bytes + begin, end - begin);
    });
    for (std::size_t i = 1; i < ones_before_.size(); ++i) ones_before_[i] += ones_before_[i - 1];
  }

  [[nodiscard]] std::uint64_t num_ones() const noexcept { return ones_before_.back(); }

  /// body(begin_byte, end_byte, first_one, last_one) for each chunk.
  template <typename Body>
  void for_each(Body const& body) const noexcept {
    for_chunks(ctx_, num_bytes_, grain_bytes_, [&](std::uint64_t begin, std::uint64_t end) {
      std::uint64_t const chunk = begin / grain_bytes_;
      body(begin, end, ones_before_[chunk], ones_before_[chunk + 1]);
    });
  }

 private:
  static constexpr std::uint64_t kMaxChunks = 64;
  static constexpr std::uint64_t kMinChunkBytes = 4096;

  ExecContext const& ctx_;
  std::uint64_t num_bytes_;
  std::uint64_t grain_bytes_ = 0;
  std::array<std::uint64_t, kMaxChunks + 1> ones_before_ = {};
};

}  // namespace gradsieve::kernels::cpu
