// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sign.simd.hpp"

#include <cstring>

#include "kernels/cpu/compensate_window.hpp"
#include "kernels/cpu/corrected_lanes.hpp"
#include "kernels/cpu/lane_sums.hpp"

namespace gradsieve::kernels::cpu {
namespace {

/// The sum of a block is made of partial sums of this many elements, in eight lanes: both numbers
/// are part of the definition.
constexpr std::uint64_t kSumBlock = 4096;

/// Elements whose bits fill whole bytes, and their bits.
#if defined(__AVX512F__)
typedef std::uint16_t RowBits;
#else
typedef std::uint8_t RowBits;
#endif
constexpr std::uint64_t kRow = 8 * sizeof(RowBits);

/// Bit i stands for element i.
struct Planes {
  std::uint32_t negative;
  std::uint32_t zero;
};

/// Of kRow elements.
[[gnu::always_inline]] inline Planes planes_of(float const* values) {
#if defined(__AVX512F__)
  __m512 const x = _mm512_loadu_ps(values);
  std::uint32_t negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  std::uint32_t zero = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_EQ_OQ);
  __asm__("" : "+r"(negative), "+r"(zero));  // numbers from here on: see mask_above
  return {negative, zero};
#elif defined(__AVX2__)
  __m256 const x = _mm256_loadu_ps(values);
  __m256 const nothing = _mm256_setzero_ps();
  return {static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, nothing, _CMP_LT_OQ))),
          static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, nothing, _CMP_EQ_OQ)))};
#elif defined(__SSE2__)
  __m128 const low = _mm_loadu_ps(values);
  __m128 const high = _mm_loadu_ps(values + 4);
  __m128 const nothing = _mm_setzero_ps();
  return {static_cast<std::uint32_t>(_mm_movemask_ps(_mm_cmplt_ps(low, nothing)) |
                                     _mm_movemask_ps(_mm_cmplt_ps(high, nothing)) << 4),
          static_cast<std::uint32_t>(_mm_movemask_ps(_mm_cmpeq_ps(low, nothing)) |
                                     _mm_movemask_ps(_mm_cmpeq_ps(high, nothing)) << 4)};
#else
  Planes planes = {0, 0};
  for (int i = 0; i < 8; ++i) {
    planes.negative |= (values[i] < 0.0F ? 1U : 0U) << i;
    planes.zero |= (values[i] == 0.0F ? 1U : 0U) << i;
  }
  return planes;
#endif
}

/// A row of bits. Blocks need not be multiples of eight, so a block may begin within a byte.
class BitRow {
 public:
  explicit BitRow(unsigned char* out) : out_(out) {}

  /// At most 32 bits.
  [[gnu::always_inline]] void append(std::uint32_t bits, std::uint32_t count) {
    waiting_ |= std::uint64_t{bits} << num_waiting_;
    num_waiting_ += count;
    if (num_waiting_ < 32) return;
    auto const word = static_cast<std::uint32_t>(waiting_);
    std::memcpy(out_, &word, sizeof word);
    out_ += sizeof word;
    waiting_ >>= 32;
    num_waiting_ -= 32;
  }
  void finish() { std::memcpy(out_, &waiting_, (num_waiting_ + 7) / 8); }

 private:
  unsigned char* out_;
  std::uint64_t waiting_ = 0;
  std::uint32_t num_waiting_ = 0;
};

typedef LaneSums<Summand::magnitude> MagnitudeSums;

/// What the scale of a block is made of.
struct Magnitudes {
  double sum = 0;
  std::uint64_t num_zeros = 0;
};

std::uint64_t num_ones(std::uint32_t bits) {
  // Gradients hold few zeros, and not every target counts bits with an instruction.
  return bits == 0 ? 0 : static_cast<std::uint64_t>(__builtin_popcount(bits));
}

[[gnu::always_inline]] inline Planes measure_32(float const* values, MagnitudeSums& sums) {
  Planes planes = {0, 0};
  for (std::uint32_t part = 0; part < 32; part += kRow) {
    Planes const row = planes_of(values + part);
    planes.negative |= row.negative << part;
    planes.zero |= row.zero << part;
    for (std::uint32_t i = 0; i < kRow; i += 8) sums.add_eight(values + part + i);
  }
  return planes;
}

/// One partial sum, and the bits of its elements.
void measure_sum_block(float const* values, std::uint64_t count, BitRow& signs_row,
                       BitRow& zeros_row, Magnitudes& magnitudes) {
  MagnitudeSums sums;
  BitRow signs = signs_row;  // by value: the bytes they write might otherwise be their own
  BitRow zeros = zeros_row;
  std::uint64_t num_zeros = 0;
  std::uint64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    Planes const planes = measure_32(values + i, sums);
    signs.append(planes.negative, 32);
    zeros.append(planes.zero, 32);
    num_zeros += num_ones(planes.zero);
  }
  for (std::uint64_t const begin = i; i < count; ++i) {
    float const c = values[i];
    sums.add_one(static_cast<int>((i - begin) % 8), c);
    signs.append(c < 0.0F ? 1 : 0, 1);
    zeros.append(c == 0.0F ? 1 : 0, 1);
    num_zeros += c == 0.0F ? 1U : 0U;
  }
  signs_row = signs;
  zeros_row = zeros;
  magnitudes.sum += sums.total();
  magnitudes.num_zeros += num_zeros;
}

/// kSumsAbreast blocks of one partial sum each, a multiple of 32 elements.
void measure_abreast(float const* values, std::uint64_t block_elements, unsigned char* signs,
                     unsigned char* zeros, Magnitudes* magnitudes) {
  MagnitudeSums sums[kSumsAbreast];
  std::uint64_t num_zeros[kSumsAbreast] = {};
  for (std::uint64_t i = 0; i < block_elements; i += 32) {
#pragma GCC unroll 4
    for (int b = 0; b < kSumsAbreast; ++b) {
      std::uint64_t const at = static_cast<std::uint64_t>(b) * block_elements + i;
      Planes const planes = measure_32(values + at, sums[b]);
      store(planes.negative, signs + at / 8);
      store(planes.zero, zeros + at / 8);
      num_zeros[b] += num_ones(planes.zero);
    }
  }
  for (int b = 0; b < kSumsAbreast; ++b) magnitudes[b] = {sums[b].total(), num_zeros[b]};
}

float scale_of(Magnitudes const& magnitudes, std::uint64_t count) {
  std::uint64_t const num_nonzero = count - magnitudes.num_zeros;
  if (num_nonzero == 0) return 0.0F;
  return static_cast<float>(magnitudes.sum / static_cast<double>(num_nonzero));
}

void retain_block(float const* corrected, std::uint64_t count, float scale, float* residual) {
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) {
    float const c = corrected[i];
    float const nonnegative = c > 0.0F ? scale : 0.0F;
    residual[i] = c - (c < 0.0F ? -scale : nonnegative);
  }
}

/// Short blocks whose sums are made side by side.
bool go_abreast(std::uint64_t block_elements) {
  return block_elements % 32 == 0 && block_elements <= kSumBlock;
}

/// True if an element is zero.
bool sign_blocks(SignRun const& run, float const* corrected) {
  std::uint64_t const block_elements = run.block_elements;
  bool any_zero = false;
  float* scale = run.scales;
  auto const finish = [&](std::uint64_t begin, std::uint64_t count, Magnitudes const& magnitudes) {
    any_zero = any_zero || magnitudes.num_zeros != 0;
    *scale = scale_of(magnitudes, count);
    if (run.residual != nullptr) {
      retain_block(corrected + begin, count, *scale, run.residual + begin);
    }
    ++scale;
  };

  std::uint64_t begin = 0;
  while (go_abreast(block_elements) && run.num_elements - begin >= kSumsAbreast * block_elements) {
    Magnitudes magnitudes[kSumsAbreast];
    measure_abreast(corrected + begin, block_elements, run.signs + begin / 8, run.zeros + begin / 8,
                    magnitudes);
    for (Magnitudes const& of_block : magnitudes) {
      finish(begin, block_elements, of_block);
      begin += block_elements;
    }
  }
  BitRow signs(run.signs + begin / 8);
  BitRow zeros(run.zeros + begin / 8);
  for (; begin < run.num_elements; begin += block_elements) {
    std::uint64_t const count = smaller(block_elements, run.num_elements - begin);
    Magnitudes magnitudes;
    for (std::uint64_t done = 0; done < count; done += kSumBlock) {
      measure_sum_block(corrected + begin + done, smaller(kSumBlock, count - done), signs, zeros,
                        magnitudes);
    }
    finish(begin, count, magnitudes);
  }
  signs.finish();
  zeros.finish();
  return any_zero;
}

// --- from g and e --------------------------------------------------------------------------------

/// A block whose c stands in the residual until its scale is taken from it.
struct Waiting {
  float* residual = nullptr;
  float scale = 0.0F;
  bool has_zeros = false;

  template <bool kZeros>
  [[gnu::always_inline]] inline void retain_32(std::uint64_t i) const {
    for (std::uint32_t part = 0; part < 32; part += kLanes) {
      Floats const c = load<Floats>(residual + i + part);
      Words const sign = reinterpret_cast<Words>(c) & all_words(kSignBit);
      Floats const rest = c - reinterpret_cast<Floats>(sign | all_words(bits_of(scale)));
      store(kZeros ? (c == Floats{} ? c : rest) : rest, residual + i + part);
    }
  }
};

enum class Before { none, without_zeros, with_zeros };

/// Makes c of a block from memory, bits and sums with it. What the block before waits for is done
/// in between: it lies in the cache, so that this one's way from memory is hidden.
template <Before kBefore, typename Source>
Magnitudes sign_block(Source const& made_of, SignRun const& run, Waiting const& waiting,
                      std::uint64_t begin, Words& non_finite) {
  Source const source = made_of;  // by value: what is written might otherwise be their fields
  Waiting const before = waiting;
  Words found = non_finite;
  float* const c = run.residual + begin;
  unsigned char* const signs = run.signs + begin / 8;
  unsigned char* const zeros = run.zeros + begin / 8;
  std::uint64_t const count = run.block_elements;
  MagnitudeSums sums;
  std::uint64_t num_zeros = 0;
  for (std::uint64_t i = 0; i < count; i += 32) {
    for (std::uint32_t part = 0; part < 32; part += kLanes) {
      store(source.at(begin + i + part, found), c + i + part);
    }
    Planes const planes = measure_32(c + i, sums);
    store(planes.negative, signs + i / 8);
    store(planes.zero, zeros + i / 8);
    num_zeros += num_ones(planes.zero);
    if constexpr (kBefore != Before::none) before.retain_32<kBefore == Before::with_zeros>(i);
  }
  non_finite = found;
  return {sums.total(), num_zeros};
}

/// Blocks of one partial sum each, a multiple of 32 elements; returns how many elements they are.
template <typename Source>
std::uint64_t sign_whole_blocks(Source const& source, SignRun const& run, SignFindings& found) {
  std::uint64_t const block_elements = run.block_elements;
  Waiting before;
  Words non_finite = {};
  std::uint64_t begin = 0;
  for (float* scale = run.scales; run.num_elements - begin >= block_elements; ++scale) {
    auto const sign_next = before.residual == nullptr ? sign_block<Before::none, Source>
                           : before.has_zeros         ? sign_block<Before::with_zeros, Source>
                                                      : sign_block<Before::without_zeros, Source>;
    Magnitudes const magnitudes = sign_next(source, run, before, begin, non_finite);
    *scale = scale_of(magnitudes, block_elements);
    before = {run.residual + begin, *scale, magnitudes.num_zeros != 0};
    found.any_zero |= before.has_zeros;
    begin += block_elements;
  }
  if (before.residual != nullptr) {
    for (std::uint64_t i = 0; i < block_elements; i += 32) before.retain_32<true>(i);
  }
  found.any_nonfinite |= mask_above(Words{}, non_finite) != 0;
  return begin;
}

template <ElementType kType>
std::uint64_t sign_whole_blocks_of(void const* gradient, float const* residual_in, float carry,
                                   SignRun const& run, SignFindings& found) {
  if (residual_in == nullptr) {
    return sign_whole_blocks(Corrected<kType, false>(gradient, nullptr, carry), run, found);
  }
  return sign_whole_blocks(Corrected<kType, true>(gradient, residual_in, carry), run, found);
}

/// As many blocks as stay in the first-level cache, and fill whole bytes of the planes.
std::uint64_t window_elements(std::uint64_t block_elements) {
  std::uint64_t const fitting = kSumBlock / block_elements;
  std::uint64_t const num_blocks = fitting == 0 ? 1 : fitting;
  return (block_elements % 8 == 0 ? num_blocks : (num_blocks + 7) / 8 * 8) * block_elements;
}

/// weight·ĉ of one element has one of three values.
struct Products {
  std::uint32_t positive;
  std::uint32_t zero;
};

[[gnu::always_inline]] inline bool bit_of(unsigned char const* plane, std::uint64_t i) {
  return (plane[i / 8] >> (i % 8) & 1) != 0;
}

/// The sign bit in the lanes whose bit is set.
[[gnu::always_inline]] inline Words signs_of_mask(std::uint32_t mask) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return (all_words(mask) << (31 - words_from(0))) & all_words(kSignBit);
#else
  return words_of_mask(mask) & all_words(kSignBit);
#endif
}

template <bool kZeros>
[[gnu::always_inline]] inline void add_row(Products const& products, std::uint32_t negative,
                                           std::uint32_t zero, float* accumulator) {
  for (std::uint32_t i = 0; i < kRow; i += kLanes) {
    Words const flipped = signs_of_mask(negative >> i);
    Words product = all_words(products.positive) ^ flipped;
    if constexpr (kZeros) {
      Words const is_zero = words_of_mask(zero >> i);
      product = (is_zero & all_words(products.zero)) | (~is_zero & product);
    }
    Floats const sum = load<Floats>(accumulator + i) + reinterpret_cast<Floats>(product);
    store(canonical(sum), accumulator + i);
  }
}

/// Elements that share a scale, from the first bit of a byte on; `zeros` may be null if !kZeros.
template <bool kZeros>
void add_block(Products const& products, unsigned char const* signs, unsigned char const* zeros,
               std::uint64_t count, float* accumulator) {
  std::uint64_t i = 0;
  // Gradients hold few zeros: where there is none, nobody looks for it in each row.
  for (; kZeros && i + 64 <= count; i += 64) {
    bool const has_zero = load<std::uint64_t>(zeros + i / 8) != 0;
    for (std::uint64_t row = i; row < i + 64; row += kRow) {
      auto const negative = load<RowBits>(signs + row / 8);
      if (has_zero) {
        add_row<true>(products, negative, load<RowBits>(zeros + row / 8), accumulator + row);
      } else {
        add_row<false>(products, negative, 0, accumulator + row);
      }
    }
  }
  for (; i + kRow <= count; i += kRow) {
    std::uint32_t const zero = kZeros ? load<RowBits>(zeros + i / 8) : 0;
    add_row<kZeros>(products, load<RowBits>(signs + i / 8), zero, accumulator + i);
  }
  if (i == count) return;
  RowBits negative = 0;
  RowBits zero = 0;
  float row[kRow] = {};
  std::memcpy(&negative, signs + i / 8, (count - i + 7) / 8);
  if constexpr (kZeros) std::memcpy(&zero, zeros + i / 8, (count - i + 7) / 8);
  std::memcpy(row, accumulator + i, (count - i) * sizeof(float));
  add_row<kZeros>(products, negative, zero, row);
  std::memcpy(accumulator + i, row, (count - i) * sizeof(float));
}

}  // namespace

namespace GRADSIEVE_TARGET {

bool sign_run(SignRun const& run, float const* corrected) { return sign_blocks(run, corrected); }

SignFindings sign_fused_run(SignRun const& run, void const* gradient, ElementType type,
                            float const* residual_in, float carry) {
  SignFindings found = {};
  std::uint64_t begin = 0;
  if (go_abreast(run.block_elements)) {
    auto const sign_whole = type == ElementType::f16    ? sign_whole_blocks_of<ElementType::f16>
                            : type == ElementType::bf16 ? sign_whole_blocks_of<ElementType::bf16>
                                                        : sign_whole_blocks_of<ElementType::f32>;
    begin = sign_whole(gradient, residual_in, carry, run, found);
  }
  Uncorrected const source = {gradient, type, residual_in, carry};
  std::uint64_t const window = window_elements(run.block_elements);
  for (; begin < run.num_elements; begin += window) {
    SignRun part = run;
    part.num_elements = smaller(window, run.num_elements - begin);
    part.signs += begin / 8;
    part.zeros += begin / 8;
    part.scales += begin / run.block_elements;
    part.residual += begin;
    std::int32_t const largest_bits =
        compensate_block(source, begin, part.num_elements, part.residual);
    found.any_nonfinite |= static_cast<std::uint32_t>(largest_bits) >= kInfinityBits;
    found.any_zero |= sign_blocks(part, part.residual);
  }
  return found;
}

void sign_add_run(unsigned char const* signs, unsigned char const* zeros,
                  unsigned char const* scales, std::uint64_t block_elements, float weight,
                  float* accumulator, std::uint64_t begin, std::uint64_t end) {
  while (begin < end) {
    std::uint64_t const block = begin / block_elements;
    std::uint64_t const count = smaller(end, (block + 1) * block_elements) - begin;
    auto const scale = load<float>(scales + block * sizeof(float));
    Products const products = {bits_of(weight * scale), bits_of(weight * 0.0F)};
    if (block_elements % 8 != 0) {
      for (std::uint64_t i = begin; i < begin + count; ++i) {
        bool const is_zero = zeros != nullptr && bit_of(zeros, i);
        std::uint32_t const flipped = bit_of(signs, i) ? kSignBit : 0U;
        float const product = float_of(is_zero ? products.zero : products.positive ^ flipped);
        accumulator[i] = canonical(accumulator[i] + product);
      }
    } else if (zeros == nullptr) {
      add_block<false>(products, signs + begin / 8, nullptr, count, accumulator + begin);
    } else {
      add_block<true>(products, signs + begin / 8, zeros + begin / 8, count, accumulator + begin);
    }
    begin += count;
  }
}

}  // namespace GRADSIEVE_TARGET
}  // namespace gradsieve::kernels::cpu
