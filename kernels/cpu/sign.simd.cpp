// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sign.simd.hpp"

#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels/cpu/element_lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

/// The sum of a block is made of partial sums of this many elements, in eight lanes: both numbers
/// are part of the definition.
constexpr std::uint64_t kSumBlock = 4096;
typedef float Floats __attribute__((vector_size(32)));
typedef std::int32_t Words __attribute__((vector_size(32)));
// Two vectors of four lanes: compilers take wider ones apart, and badly.
typedef float FourFloats __attribute__((vector_size(16)));
typedef double FourDoubles __attribute__((vector_size(32)));

std::uint64_t smaller(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }

/// Bit i stands for element i.
struct Planes {
  std::uint32_t negative;
  std::uint32_t zero;
};

[[gnu::always_inline]] inline Planes planes_of(float const* values) {
#if defined(__AVX2__)
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

/// Sums of magnitudes in eight lanes.
class LaneSums {
 public:
  [[gnu::always_inline]] void add_eight(float const* values) {
    add_magnitudes(values, low_);
    add_magnitudes(values + 4, high_);
  }
  [[gnu::always_inline]] void add_one(int lane, float value) {
    double const magnitude = __builtin_fabsf(value);
    if (lane < 4) {
      low_[lane] += magnitude;
    } else {
      high_[lane - 4] += magnitude;
    }
  }
  double total() const {
    return ((low_[0] + low_[1]) + (low_[2] + low_[3])) +
           ((high_[0] + high_[1]) + (high_[2] + high_[3]));
  }

 private:
  [[gnu::always_inline]] static void add_magnitudes(float const* values, FourDoubles& lanes) {
    typedef std::int32_t FourWords __attribute__((vector_size(16)));
    FourWords bits;
    std::memcpy(&bits, values, sizeof bits);
    lanes += __builtin_convertvector(reinterpret_cast<FourFloats>(bits & 0x7fffffff), FourDoubles);
  }

  FourDoubles low_ = {};
  FourDoubles high_ = {};
};

struct Magnitudes {
  double sum = 0;
  std::uint64_t num_zeros = 0;
};

std::uint64_t num_ones(std::uint32_t bits) {
  // Gradients hold few zeros, and not every target counts bits with an instruction.
  return bits == 0 ? 0 : static_cast<std::uint64_t>(__builtin_popcount(bits));
}

/// One partial sum, and the bits of its elements.
void add_sum_block(float const* values, std::uint64_t count, BitRow& signs_row, BitRow& zeros_row,
                   Magnitudes& magnitudes) {
  LaneSums sums;
  BitRow signs = signs_row;  // by value: the bytes they write might otherwise be their own
  BitRow zeros = zeros_row;
  std::uint64_t num_zeros = 0;
  std::uint64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    Planes planes = {0, 0};
    for (std::uint32_t part = 0; part < 32; part += 8) {
      Planes const eight = planes_of(values + i + part);
      planes.negative |= eight.negative << part;
      planes.zero |= eight.zero << part;
      sums.add_eight(values + i + part);
    }
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

void retain_block(float const* corrected, std::uint64_t count, float scale, float* residual) {
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) {
    float const c = corrected[i];
    float const nonnegative = c > 0.0F ? scale : 0.0F;
    residual[i] = c - (c < 0.0F ? -scale : nonnegative);
  }
}

/// weight·ĉ of one element has one of three values.
struct Products {
  std::uint32_t positive;
  std::uint32_t zero;
};

[[gnu::always_inline]] inline void add_eight(Products const& products, std::uint32_t negative,
                                             std::uint32_t zero, float* accumulator) {
  Words const bit = {1, 2, 4, 8, 16, 32, 64, 128};
  Words const is_negative = (bit & static_cast<std::int32_t>(negative)) == bit;
  Words const is_zero = (bit & static_cast<std::int32_t>(zero)) == bit;
  Words const signed_product = (is_negative & static_cast<std::int32_t>(kSignBit)) ^
                               static_cast<std::int32_t>(products.positive);
  Words const product =
      (is_zero & static_cast<std::int32_t>(products.zero)) | (~is_zero & signed_product);
  Floats sum;
  std::memcpy(&sum, accumulator, sizeof sum);
  sum += reinterpret_cast<Floats>(product);
  Words const is_nan = sum != sum;
  Words const result =
      (is_nan & static_cast<std::int32_t>(kNanBits)) | (~is_nan & reinterpret_cast<Words>(sum));
  std::memcpy(accumulator, &result, sizeof result);
}

[[gnu::always_inline]] inline bool bit_of(unsigned char const* plane, std::uint64_t i) {
  return (plane[i / 8] >> (i % 8) & 1) != 0;
}

}  // namespace

namespace GRADSIEVE_TARGET {

bool sign_run(SignRun const& run, float const* corrected) {
  BitRow signs(run.signs);
  BitRow zeros(run.zeros);
  bool any_zero = false;
  float* scale = run.scales;
  for (std::uint64_t begin = 0; begin < run.num_elements; begin += run.block_elements) {
    std::uint64_t const count = smaller(run.block_elements, run.num_elements - begin);
    Magnitudes magnitudes;
    for (std::uint64_t done = 0; done < count; done += kSumBlock) {
      add_sum_block(corrected + begin + done, smaller(kSumBlock, count - done), signs, zeros,
                    magnitudes);
    }
    any_zero = any_zero || magnitudes.num_zeros != 0;
    std::uint64_t const num_nonzero = count - magnitudes.num_zeros;
    *scale = num_nonzero == 0
                 ? 0.0F
                 : static_cast<float>(magnitudes.sum / static_cast<double>(num_nonzero));
    if (run.residual != nullptr) {
      retain_block(corrected + begin, count, *scale, run.residual + begin);
    }
    ++scale;
  }
  signs.finish();
  zeros.finish();
  return any_zero;
}

void sign_add_run(unsigned char const* signs, unsigned char const* zeros,
                  unsigned char const* scales, std::uint64_t block_elements, float weight,
                  float* accumulator, std::uint64_t begin, std::uint64_t end) {
  while (begin < end) {
    std::uint64_t const block = begin / block_elements;
    std::uint64_t const block_end = smaller(end, (block + 1) * block_elements);
    float scale;
    std::memcpy(&scale, scales + block * sizeof scale, sizeof scale);
    Products const products = {bits_of(weight * scale), bits_of(weight * 0.0F)};
    while (begin < block_end) {
      if (begin % 8 == 0 && begin + 8 <= block_end) {
        add_eight(products, signs[begin / 8], zeros == nullptr ? 0U : zeros[begin / 8],
                  accumulator + begin);
        begin += 8;
        continue;
      }
      bool const is_zero = zeros != nullptr && bit_of(zeros, begin);
      std::uint32_t const flipped = bit_of(signs, begin) ? kSignBit : 0U;
      float const product = float_of(is_zero ? products.zero : products.positive ^ flipped);
      accumulator[begin] = canonical(accumulator[begin] + product);
      ++begin;
    }
  }
}

}  // namespace GRADSIEVE_TARGET
}  // namespace gradsieve::kernels::cpu
