// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/select_pass.simd.hpp"

#include "kernels/cpu/compensate_lanes.hpp"
#include "kernels/cpu/corrected_lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

template <ElementType kType, bool kHasResidual>
struct ToSend : Corrected<kType, kHasResidual> {
  explicit ToSend(SelectPass const& pass)
      : Corrected<kType, kHasResidual>(pass.gradient, pass.residual_in, pass.carry) {}
};

struct InPlace {
  float const* c;
  explicit InPlace(SelectPass const& pass) : c(pass.residual_out) {}
  [[gnu::always_inline]] inline Floats at(std::uint64_t i, Words&) const {
    return load<Floats>(c + i);
  }
};

/// Candidates of a block, in order.
struct Kept {
  std::uint32_t* indices;
  float* values;
  std::uint32_t count = 0;

  [[gnu::always_inline]] inline void add(std::uint32_t mask, Words index, Floats c) {
    Compression const compression(mask);
    compression.store_words(index, indices + count);
    compression.store_words(reinterpret_cast<Words>(c), values + count);
    count += compression.count();
  }
};

constexpr std::uint32_t kStride = 64;
static_assert(kStride <= kSelectSlack && kStride % kLanes == 0);

/// Adds the elements of a stride that have their bit in `mask`. At the densities of use a stride
/// has none or a few of them, which no branch predictor can know: the first ones are stored without
/// asking whether they exist.
[[gnu::always_inline]] inline void keep_stride(std::uint64_t mask, std::uint32_t first_index,
                                               float const* c, Kept& kept) {
  constexpr std::uint32_t kFew = 4;
  auto const num_kept = static_cast<std::uint32_t>(__builtin_popcountll(mask));
  if (num_kept <= kFew) [[likely]] {
#pragma GCC unroll 4
    for (std::uint32_t j = 0; j < kFew; ++j) {
      auto const i = static_cast<std::uint32_t>(__builtin_ctzll(mask | std::uint64_t{1} << 63));
      kept.indices[kept.count + j] = first_index + i;
      kept.values[kept.count + j] = c[i];
      mask &= mask - 1;
    }
    kept.count += num_kept;
    return;
  }
  for (std::uint32_t i = 0; i < kStride; i += kLanes) {
    kept.add(static_cast<std::uint32_t>(mask >> i) & kAllLanes, words_from(first_index + i),
             load<Floats>(c + i));
  }
}

/// All whole strides of the block; returns where they end.
template <typename Source, bool kStreams>
std::uint32_t select_strides(SelectPass const& pass, Kept& kept, std::uint32_t* non_finite) {
  Source const source(pass);
  Words const keep_bound = bound_below(pass.keep_from);
  Words const zero_bound = bound_below(pass.zero_from);
  float* const out = pass.residual_out;
  std::uint32_t const count = pass.count;
  std::uint32_t const first_index = pass.first_index;
  Words found = {};
  std::uint32_t begin = 0;
  for (; begin + kStride <= count; begin += kStride) {
    alignas(64) float c[kStride];
    std::uint64_t mask = 0;
#pragma GCC unroll 16
    for (std::uint32_t i = 0; i < kStride; i += kLanes) {
      Floats const x = source.at(begin + i, found);
      Words const magnitude = magnitudes(x);
      mask |= std::uint64_t{mask_above(magnitude, keep_bound)} << i;
      store(x, c + i);
      Floats const left = magnitude > zero_bound ? Floats{} : x;
      if constexpr (kStreams) {
        store_streaming(left, out + begin + i);
      } else {
        store(left, out + begin + i);
      }
    }
    keep_stride(mask, first_index + begin, c, kept);
  }
  if constexpr (kStreams) end_streaming();
  *non_finite |= mask_above(Words{}, found);
  return begin;
}

template <typename Source>
std::uint32_t select_from(SelectPass const& pass, std::uint32_t size, std::uint32_t* indices,
                          float* values, std::uint32_t* non_finite) {
  Kept kept = {indices, values};
  bool const is_aligned = reinterpret_cast<std::uintptr_t>(pass.residual_out) % sizeof(Floats) == 0;
  std::uint32_t const done = pass.streams && is_aligned
                                 ? select_strides<Source, true>(pass, kept, non_finite)
                                 : select_strides<Source, false>(pass, kept, non_finite);
  std::uint32_t const rest = pass.count - done;
  if (rest == 0) return kept.count;

  // The rest, and zeros up to a whole stride. Zeros are candidates if everything is.
  char gradient[4 * kStride] = {};
  float residual_in[kStride] = {};
  float residual_out[kStride] = {};
  if (pass.gradient != nullptr) {
    __builtin_memcpy(gradient, static_cast<char const*>(pass.gradient) + done * size, rest * size);
  }
  if (pass.residual_in != nullptr) {
    __builtin_memcpy(residual_in, pass.residual_in + done, rest * sizeof(float));
  }
  __builtin_memcpy(residual_out, pass.residual_out + done, rest * sizeof(float));
  SelectPass padded = pass;
  padded.gradient = gradient;
  padded.residual_in = residual_in;
  padded.residual_out = residual_out;
  padded.count = kStride;
  padded.first_index += done;
  select_strides<Source, false>(padded, kept, non_finite);
  __builtin_memcpy(pass.residual_out + done, residual_out, rest * sizeof(float));
  return kept.count - (pass.keep_from == 0 ? kStride - rest : 0);
}

template <ElementType kType>
std::uint32_t select_typed(SelectPass const& pass, std::uint32_t* indices, float* values,
                           std::uint32_t* non_finite) {
  std::uint32_t const size = kType == ElementType::f32 ? 4 : 2;
  if (pass.residual_in == nullptr) {
    return select_from<ToSend<kType, false>>(pass, size, indices, values, non_finite);
  }
  return select_from<ToSend<kType, true>>(pass, size, indices, values, non_finite);
}

std::uint32_t select_in_place(SelectPass const& pass, std::uint32_t* indices, float* values,
                              std::uint32_t* non_finite) {
  return select_from<InPlace>(pass, 4, indices, values, non_finite);
}

}  // namespace

namespace GRADSIEVE_TARGET {

std::uint32_t select_block(SelectPass const& pass, std::uint32_t* indices, float* values,
                           std::uint32_t* non_finite) {
  auto const select = pass.gradient == nullptr         ? select_in_place
                      : pass.type == ElementType::f16  ? select_typed<ElementType::f16>
                      : pass.type == ElementType::bf16 ? select_typed<ElementType::bf16>
                                                       : select_typed<ElementType::f32>;
  return select(pass, indices, values, non_finite);
}

std::uint32_t magnitudes_below(float const* values, std::uint32_t count, std::uint32_t limit,
                               std::uint32_t* out) {
  Words const bound = bound_below(limit);
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < count; i += kLanes) {
    Words const magnitude = magnitudes(load<Floats>(values + i));
    Compression const below(~mask_above(magnitude, bound) & lanes_before(i, count));
    below.store_words(magnitude, out + kept);
    kept += below.count();
  }
  return kept;
}

std::uint32_t copy_from(std::uint32_t const* indices, float const* values, std::uint32_t count,
                        std::uint32_t from, std::uint32_t* indices_out, float* values_out) {
  Words const bound = bound_below(from);
  Kept kept = {indices_out, values_out};
  for (std::uint32_t i = 0; i < count; i += kLanes) {
    Floats const x = load<Floats>(values + i);
    kept.add(mask_above(magnitudes(x), bound) & lanes_before(i, count), load<Words>(indices + i),
             x);
  }
  return kept.count;
}

void mend(std::uint32_t const* indices, float const* values, std::uint32_t count,
          std::uint32_t from, std::uint32_t to, bool restore, float* x) {
  Words const bound = bound_below(from);
  Words const limit = bound_below(to);
  for (std::uint32_t i = 0; i < count; i += kLanes) {
    Words const magnitude = magnitudes(load<Floats>(values + i));
    std::uint32_t mask =
        mask_above(magnitude, bound) & ~mask_above(magnitude, limit) & lanes_before(i, count);
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
