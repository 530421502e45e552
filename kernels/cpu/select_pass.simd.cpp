// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/select_pass.simd.hpp"

#include "kernels/cpu/compensate_lanes.hpp"
#include "kernels/cpu/compress_lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

// A piece of c stays in the first-level cache between the arithmetic, which the compiler vectorises
// for each type of gradient, and the compression, which is written once per instruction set.
constexpr std::uint32_t kPieceElements = 512;

// c ← what is to be sent, out ← that with +0 where it qualifies to be zeroed.
template <ElementType kType, typename Residual>
std::uint32_t correct_elements(void const* gradient, Residual residual_in, float carry,
                               std::uint32_t zero_from, std::uint64_t count, float* c, float* out) {
  Elements<kType> const elements(gradient);
  std::uint32_t non_finite = 0;
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) {
    float const x = compensated(elements.at(i), carry, residual_in[i], non_finite);
    c[i] = x;
    out[i] = (bits_of(x) & ~kSignBit) >= zero_from ? 0.0F : x;
  }
  return non_finite;
}

template <ElementType kType>
std::uint32_t correct_typed(SelectPass const& pass, std::uint64_t begin, std::uint64_t count,
                            float* c) {
  using Stored = decltype(Elements<kType>::data);
  void const* const gradient = static_cast<Stored>(pass.gradient) + begin;
  float* const out = pass.residual_out + begin;
  if (pass.residual_in == nullptr) {
    return correct_elements<kType>(gradient, NoResidual{}, pass.carry, pass.zero_from, count, c,
                                   out);
  }
  return correct_elements<kType>(gradient, pass.residual_in + begin, pass.carry, pass.zero_from,
                                 count, c, out);
}

std::uint32_t correct_in_place(SelectPass const& pass, std::uint64_t begin, std::uint64_t count,
                               float* c) {
  float* const out = pass.residual_out + begin;
  std::uint32_t const zero_from = pass.zero_from;
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) {
    float const x = out[i];
    c[i] = x;
    out[i] = (bits_of(x) & ~kSignBit) >= zero_from ? 0.0F : x;
  }
  return 0;
}

[[gnu::always_inline]] inline void keep_group(float const* c, std::uint32_t first_index,
                                              std::uint32_t mask, std::uint32_t& kept,
                                              std::uint32_t* indices, float* values) {
  store_compressed(mask, words_from(first_index), indices + kept);
  store_compressed(mask, load_words(c), values + kept);
  kept += count_bits(mask);
}

std::uint32_t keep(float const* c, std::uint32_t count, std::uint32_t first_index,
                   std::uint32_t keep_from, std::uint32_t* indices, float* values) {
  Words const bound = bound_below(keep_from);
  std::uint32_t kept = 0;
  std::uint32_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    std::uint32_t masks[4];
    for (std::uint32_t g = 0; g < 4; ++g)
      masks[g] = mask_above(load_words(c + i + g * kLanes), bound);
    if ((masks[0] | masks[1] | masks[2] | masks[3]) == 0) continue;
    for (std::uint32_t g = 0; g < 4; ++g) {
      keep_group(c + i + g * kLanes, first_index + i + g * kLanes, masks[g], kept, indices, values);
    }
  }
  for (; i < count; i += kLanes) {
    std::uint32_t const mask = mask_above(load_words(c + i), bound) & lanes_before(i, count);
    keep_group(c + i, first_index + i, mask, kept, indices, values);
  }
  return kept;
}

}  // namespace

namespace GRADSIEVE_TARGET {

std::uint32_t select_block(SelectPass const& pass, std::uint32_t* indices, float* values,
                           std::uint32_t* non_finite) {
  auto const correct = pass.gradient == nullptr         ? correct_in_place
                       : pass.type == ElementType::f16  ? correct_typed<ElementType::f16>
                       : pass.type == ElementType::bf16 ? correct_typed<ElementType::bf16>
                                                        : correct_typed<ElementType::f32>;
  alignas(64) float c[kPieceElements + kLanes];
  std::uint32_t kept = 0;
  for (std::uint32_t begin = 0; begin < pass.count; begin += kPieceElements) {
    std::uint32_t const rest = pass.count - begin;
    std::uint32_t const count = rest < kPieceElements ? rest : kPieceElements;
    *non_finite |= correct(pass, begin, count, c);
    kept += keep(c, count, pass.first_index + begin, pass.keep_from, indices + kept, values + kept);
  }
  return kept;
}

std::uint32_t magnitudes_below(float const* values, std::uint32_t count, std::uint32_t limit,
                               std::uint32_t* magnitudes) {
  Words const bound = bound_below(limit);
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < count; i += kLanes) {
    Words const x = load_words(values + i);
    std::uint32_t const mask = ~mask_above(x, bound) & lanes_before(i, count);
    store_compressed(mask, x & all_words(0x7fffffffU), magnitudes + kept);
    kept += count_bits(mask);
  }
  return kept;
}

std::uint32_t copy_from(std::uint32_t const* indices, float const* values, std::uint32_t count,
                        std::uint32_t from, std::uint32_t* indices_out, float* values_out) {
  Words const bound = bound_below(from);
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < count; i += kLanes) {
    Words const x = load_words(values + i);
    std::uint32_t const mask = mask_above(x, bound) & lanes_before(i, count);
    store_compressed(mask, load_words(indices + i), indices_out + kept);
    store_compressed(mask, x, values_out + kept);
    kept += count_bits(mask);
  }
  return kept;
}

void mend(std::uint32_t const* indices, float const* values, std::uint32_t count,
          std::uint32_t from, std::uint32_t to, bool restore, float* x) {
  Words const bound = bound_below(from);
  Words const limit = bound_below(to);
  for (std::uint32_t i = 0; i < count; i += kLanes) {
    Words const group = load_words(values + i);
    std::uint32_t mask =
        mask_above(group, bound) & ~mask_above(group, limit) & lanes_before(i, count);
    for (; mask != 0; mask &= mask - 1U) {
      std::uint32_t const j = i + static_cast<std::uint32_t>(__builtin_ctz(mask));
      x[indices[j]] = restore ? values[j] : 0.0F;
    }
  }
}

std::uint32_t count_from(float const* values, std::uint64_t count, std::uint32_t from) {
  std::uint32_t found = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    found += (bits_of(values[i]) & ~kSignBit) >= from ? 1U : 0U;
  }
  return found;
}

void count_magnitudes(float const* values, std::uint64_t count, std::uint32_t low, int shift,
                      std::uint32_t* counts) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint32_t const bucket = ((bits_of(values[i]) & ~kSignBit) - low) >> shift;
    if (bucket < 2048U) ++counts[bucket];
  }
}

void sample_magnitudes(void const* gradient, ElementType type, float const* residual_in,
                       float carry, std::uint32_t const* positions, std::uint32_t count,
                       std::uint32_t* magnitudes) {
  std::uint32_t non_finite = 0;
  for (std::uint32_t j = 0; j < count; ++j) {
    std::uint32_t const i = positions[j];
    float const g = type == ElementType::f16    ? Elements<ElementType::f16>(gradient).at(i)
                    : type == ElementType::bf16 ? Elements<ElementType::bf16>(gradient).at(i)
                                                : Elements<ElementType::f32>(gradient).at(i);
    float const e = residual_in == nullptr ? 0.0F : residual_in[i];
    magnitudes[j] = bits_of(compensated(g, carry, e, non_finite)) & ~kSignBit;
  }
}

}  // namespace GRADSIEVE_TARGET
}  // namespace gradsieve::kernels::cpu
