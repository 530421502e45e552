// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011), addressed by what they are
// for and never by who drew before.
#pragma once

#include <array>
#include <cstdint>

#include "gradsieve/context.hpp"
#include "gradsieve/vocabulary.hpp"

namespace gradsieve {

/// Separates uses of random numbers within one tensor and step.
enum class Purpose : std::uint32_t {
  quantize = 1,        ///< stochastic rounding of a value codec
  quantize_owned = 2,  ///< the owner's second rounding of a two-shot
  residual = 3,        ///< storing a residual in bf16
  select = 4,          ///< shared draws of random-k: the rank is left out
};

struct PhiloxKey {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
};

/// One bijective round of mixing (the finaliser of SplitMix64).
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline constexpr std::uint32_t kSharedDraw = 0xffffffffu;  ///< in place of the rank

/// key = mix64(mix64(mix64(seed) ^ tensor) ^ (purpose · 2^32 + rank))
[[nodiscard]] constexpr PhiloxKey philox_key(std::uint64_t seed, TensorId tensor, Purpose purpose,
                                             std::uint32_t rank) noexcept {
  std::uint64_t const key =
      mix64(mix64(mix64(seed) ^ tensor) ^ ((static_cast<std::uint64_t>(purpose) << 32) | rank));
  return {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
}

/// Of a set that all ranks draw. Pieces of one tensor draw apart from each other.
[[nodiscard]] constexpr PhiloxKey shared_draw_key(std::uint64_t seed,
                                                  TensorInfo const& piece) noexcept {
  return philox_key(seed, piece.id + piece.offset_elements, Purpose::select, kSharedDraw);
}

/// The four words at (block, step): counter = {block low, block high, step low, step high}.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox(PhiloxKey key, std::uint64_t block,
                                                            std::uint64_t step) noexcept {
  std::array<std::uint32_t, 4> c = {
      static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
      static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32)};
  std::uint32_t k0 = key.low;
  std::uint32_t k1 = key.high;
  for (int round = 0; round < 10; ++round) {
    std::uint64_t const p0 = std::uint64_t{0xD2511F53u} * c[0];
    std::uint64_t const p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

/// Random numbers of one rounding: 16 bits per element, eight elements per block. Element i
/// (counted in its whole tensor) takes block i / 8, word (i mod 8) / 2, the low half if i is even.
struct RoundingKey {
  PhiloxKey key;
  StepValue<std::uint64_t> step = 0;
  std::uint64_t first_element = 0;  ///< of the piece within its tensor
};

[[nodiscard]] constexpr std::uint32_t rounding_bits(RoundingKey const& key,
                                                    std::uint64_t element) noexcept {
  std::uint64_t const i = key.first_element + element;
  std::uint32_t const word = philox(key.key, i / 8, key.step)[(i % 8) / 2];
  return i % 2 == 0 ? word & 0xffffu : word >> 16;
}

/// u = (bits + 1/2) / 65536, strictly between 0 and 1, exact in f32.
[[nodiscard]] constexpr float rounding_uniform(RoundingKey const& key,
                                               std::uint64_t element) noexcept {
  return (static_cast<float>(rounding_bits(key, element)) + 0.5F) * 0x1p-16F;
}

}  // namespace gradsieve
