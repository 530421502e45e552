// SPDX-License-Identifier: Apache-2.0
// A window of blocks is read from memory once: pass A makes c and finds the largest magnitudes,
// pass B, which finds c in the first-level cache, quantizes, packs and writes the residual.
#include "kernels/cpu/quantize.simd.hpp"

#include <cstring>

#include "kernels/cpu/compensate_window.hpp"
#include "kernels/cpu/lanes.hpp"
#include "kernels/cpu/philox_lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

/// Elements for which random numbers and unpacked codes are made at a time.
constexpr std::uint64_t kTileElements = 1024;
/// Elements of the innermost loop: a multiple of every vector.
constexpr std::uint64_t kGroupElements = 64;

/// What is worked on at a time: one block, or as many short ones as a tile holds.
std::uint64_t window_elements(std::uint64_t block_elements) {
  return block_elements < kTileElements ? kTileElements - kTileElements % block_elements
                                        : block_elements;
}

/// The 16-bit random numbers of a window of elements.
class RandomWindow {
 public:
  RandomWindow(RandomBitsKey const& key, std::uint64_t first_element)
      : key_(key), first_element_(first_element) {}

  /// Numbers of the elements [begin, begin + count), which lie behind those of the last call; makes
  /// `num_ahead` ≥ count of them if it has to.
  std::uint16_t const* of(std::uint64_t begin, std::uint64_t count, std::uint64_t num_ahead) {
    if (begin + count > end_) fill(begin, num_ahead);
    return numbers_ + skipped_ + (begin - begin_);
  }

 private:
  void fill(std::uint64_t begin, std::uint64_t count) {
    std::uint64_t const element = first_element_ + begin;
    skipped_ = element % 8;
    philox_rows(key_, element / 8, (skipped_ + count + 7) / 8, numbers_);
    begin_ = begin;
    end_ = begin + count;
  }

  RandomBitsKey key_;
  std::uint64_t first_element_;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t skipped_ = 0;  // numbers of the first Philox block that lie before the window
  alignas(64) std::uint16_t numbers_[kTileElements + 8 + kPhiloxSlack];
};

/// Two codes a byte. Codes wait until there are many, and an odd one out for the next of them.
class NibblePacker {
 public:
  explicit NibblePacker(unsigned char* out) : out_(out) {}

  /// Where to write the next `count` codes, at most kTileElements of them.
  signed char* next(std::uint64_t count) {
    if (num_codes_ + count > kCapacity) pack();
    signed char* const place = codes_ + num_codes_;
    num_codes_ += count;
    return place;
  }

  void finish() {
    pack();
    if (num_codes_ != 0) *out_ = static_cast<unsigned char>(codes_[0] & 0xf);
  }

 private:
  static constexpr std::uint64_t kCapacity = 2 * kTileElements;

  void pack() {
    std::uint64_t const num_pairs = num_codes_ / 2;
    unsigned char* const out = out_;  // bytes may alias the member and would keep it in memory
    GRADSIEVE_INDEPENDENT_ITERATIONS
    for (std::uint64_t i = 0; i < num_pairs; ++i) {
      std::uint16_t pair;
      std::memcpy(&pair, codes_ + 2 * i, sizeof pair);
      out[i] = static_cast<unsigned char>((pair & 0xfU) | ((pair >> 4) & 0xf0U));
    }
    out_ += num_pairs;
    codes_[0] = codes_[2 * num_pairs];
    num_codes_ %= 2;
  }

  unsigned char* out_;
  std::uint64_t num_codes_ = 0;
  alignas(64) signed char codes_[kCapacity + 64] = {};
};

// --- pass A --------------------------------------------------------------------------------------

/// Asks for what pass A will read `distance` elements from now, a few lines at a time:
/// arithmetic then hides the way from memory. Addresses behind the end are never looked at.
struct Ahead {
  char const* gradient = nullptr;  ///< null: nothing is asked for
  char const* residual_in = nullptr;
  std::uint64_t gradient_size = 4;

  Ahead() = default;
  Ahead(Uncorrected const& source, std::uint64_t distance)
      : gradient_size(source.type == ElementType::f32 ? 4 : 2) {
    gradient = static_cast<char const*>(source.gradient) + distance * gradient_size;
    residual_in = reinterpret_cast<char const*>(source.residual_in);
    if (residual_in != nullptr) residual_in += distance * sizeof(float);
  }

  [[gnu::always_inline]] void prefetch(std::uint64_t at) const {
    if (gradient == nullptr) return;
    for (std::uint64_t line = 0; line < kGroupElements * gradient_size; line += 64) {
      __builtin_prefetch(gradient + at * gradient_size + line);
    }
    if (residual_in == nullptr) return;
    for (std::uint64_t line = 0; line < kGroupElements * sizeof(float); line += 64) {
      __builtin_prefetch(residual_in + at * sizeof(float) + line);
    }
  }
};

float largest_magnitude(float const* corrected, std::uint64_t count) {
  std::int32_t largest_bits = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto const magnitude = static_cast<std::int32_t>(bits_of(corrected[i]) & ~kSignBit);
    largest_bits = magnitude > largest_bits ? magnitude : largest_bits;
  }
  return float_of(static_cast<std::uint32_t>(largest_bits));
}

// The floats next to a positive one have the bits next to its own.
float scale_of(float largest, float levels) {
  float const scale = largest / levels;
  if (scale * levels < largest) return float_of(bits_of(scale) + 1);
  return bits_of(scale * levels) == kInfinityBits ? float_of(bits_of(scale) - 1) : scale;
}

// --- pass B --------------------------------------------------------------------------------------

// Adding 1.5·2^23 leaves no bit for a fraction and rounds to even; the low byte of the sum is then
// that of the integer.
constexpr float kIntegerShift = 0x1.8p23F;

[[gnu::always_inline]] inline float round_to_nearest(float level) {
  return (level + kIntegerShift) - kIntegerShift;
}

[[gnu::always_inline]] inline float round_down(float x) {
#if defined(__SSE4_1__)
  return __builtin_floorf(x);
#else
  auto const truncated = static_cast<float>(static_cast<std::int32_t>(x));
  return truncated - (truncated > x ? 1.0F : 0.0F);
#endif
}

/// (random + 1/2) / 65536: 0x4300 above the 16 bits makes 128 + random / 65536.
[[gnu::always_inline]] inline float uniform_of(std::uint16_t random) {
  return float_of(0x43000000U | random) - (128.0F - 0x1p-17F);
}

// |c / scale| exceeds `levels` by a rounding at most. That is rounded away to the nearest, and with
// u ≥ 2^-17 on the way down from −levels; only the sum above +levels may reach the next integer.
template <bool kStochastic>
[[gnu::always_inline]] inline float rounded_level(float level, float levels, std::uint16_t random) {
  if constexpr (!kStochastic) return round_to_nearest(level);
  float const q = round_down(level + uniform_of(random));
  return q < levels ? q : levels;
}

struct Tile {
  float const* corrected;
  float scale;
  float levels;
  std::uint16_t const* random;
  signed char* codes;
  float* residual;
};

template <bool kStochastic, bool kResidual>
[[gnu::always_inline]] inline void quantize_group(Tile tile, std::uint64_t begin,
                                                  std::uint64_t count) {
  float const* const corrected = tile.corrected + begin;
  std::uint16_t const* const random = kStochastic ? tile.random + begin : nullptr;
  signed char* const codes = tile.codes + begin;
  float* const residual = kResidual ? tile.residual + begin : nullptr;
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) {
    float const c = corrected[i];
    float const q =
        rounded_level<kStochastic>(c / tile.scale, tile.levels, kStochastic ? random[i] : 0);
    codes[i] = static_cast<signed char>(bits_of(q + kIntegerShift));
    if constexpr (kResidual) residual[i] = c - q * tile.scale;
  }
}

template <bool kStochastic, bool kResidual>
void quantize_tile(Tile const& whole, std::uint64_t count, Ahead const& from, std::uint64_t at) {
  Tile const tile = whole;  // by value: codes are bytes, and might otherwise be their fields
  Ahead const ahead = from;
  std::uint64_t i = 0;
  for (; i + kGroupElements <= count; i += kGroupElements) {
    ahead.prefetch(at + i);
    quantize_group<kStochastic, kResidual>(tile, i, kGroupElements);
  }
  quantize_group<kStochastic, kResidual>(tile, i, count - i);
}

/// The block whose c stand at `corrected`; element `begin` of the run is its first.
template <bool kStochastic, bool kResidual>
void quantize_block(QuantizerRun const& run, float const* corrected, std::uint64_t begin,
                    std::uint64_t count, float scale, RandomWindow& random, NibblePacker& packer,
                    Ahead const& ahead) {
  Tile tile = {};
  tile.scale = scale;
  tile.levels = run.bits == 8 ? 127.0F : 7.0F;
  std::uint64_t const window = smaller(window_elements(run.block_elements), kTileElements);
  for (std::uint64_t done = 0; done < count; done += kTileElements) {
    std::uint64_t const n = smaller(kTileElements, count - done);
    std::uint64_t const at = begin + done;
    tile.corrected = corrected + done;
    tile.random = kStochastic ? random.of(at, n, smaller(window, run.num_elements - at)) : nullptr;
    tile.codes = run.bits == 8 ? reinterpret_cast<signed char*>(run.codes) + at : packer.next(n);
    tile.residual = kResidual ? run.residual + at : nullptr;
    if (scale == 0.0F) {
      std::memset(tile.codes, 0, n);
      if constexpr (kResidual) std::memmove(tile.residual, tile.corrected, n * sizeof(float));
    } else {
      quantize_tile<kStochastic, kResidual>(tile, n, ahead, at);
    }
  }
}

using QuantizeBlock = void(QuantizerRun const&, float const*, std::uint64_t, std::uint64_t, float,
                           RandomWindow&, NibblePacker&, Ahead const&);

QuantizeBlock* choose_quantize_block(bool is_stochastic, bool has_residual) {
  if (is_stochastic) return has_residual ? quantize_block<true, true> : quantize_block<true, false>;
  return has_residual ? quantize_block<false, true> : quantize_block<false, false>;
}

// --- decoding ------------------------------------------------------------------------------------

[[gnu::always_inline]] inline float decoded_sum(float sum, float level, float scale, float weight) {
  float const decoded = level * scale;
  return canonical(sum + weight * decoded);
}

void dequantize_bytes(unsigned char const* codes, std::uint64_t count, float scale, float weight,
                      float* accumulator) {
  GRADSIEVE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < count; ++i) {
    auto const level = static_cast<float>(static_cast<signed char>(codes[i]));
    accumulator[i] = decoded_sum(accumulator[i], level, scale, weight);
  }
}

/// The codes of kLanes elements: a word of them in every lane, and its own nibble moved to the top.
[[gnu::always_inline]] inline Words nibbles_of(unsigned char const* packed) {
  Words const lane = words_from(0);
#if defined(__AVX512F__)
  __m512i const pairs = _mm512_set1_epi64(load<std::int64_t>(packed));
  auto const words = reinterpret_cast<Words>(
      _mm512_maskz_permutexvar_epi32(0xffff, reinterpret_cast<__m512i>(lane >> 3), pairs));
#elif defined(__AVX2__)
  Words const words = all_words(load<std::uint32_t>(packed));
#else
  Words const words = all_words(load<std::uint16_t>(packed));
#endif
  return (words << (28 - 4 * (lane & 7))) >> 28;
}

/// `count` elements, of which the first has the low half of a byte.
void dequantize_nibbles(unsigned char const* packed, std::uint64_t count, float scale, float weight,
                        float* accumulator) {
  std::uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Floats const level = __builtin_convertvector(nibbles_of(packed + i / 2), Floats);
    Floats const decoded = level * all_floats(scale);
    store(canonical(load<Floats>(accumulator + i) + all_floats(weight) * decoded), accumulator + i);
  }
  for (; i < count; ++i) {
    std::int32_t const q = ((packed[i / 2] >> (i % 2 * 4) & 0xf) ^ 8) - 8;
    accumulator[i] = decoded_sum(accumulator[i], static_cast<float>(q), scale, weight);
  }
}

}  // namespace

namespace GRADSIEVE_TARGET {

void quantize_run(QuantizerRun const& run, float const* corrected) {
  QuantizeBlock* const quantize = choose_quantize_block(run.is_stochastic, run.residual != nullptr);
  RandomWindow random(run.key, run.first_element);
  NibblePacker packer(run.codes);
  float const levels = run.bits == 8 ? 127.0F : 7.0F;
  float* scale = run.scales;
  for (std::uint64_t begin = 0; begin < run.num_elements; begin += run.block_elements) {
    std::uint64_t const count = smaller(run.block_elements, run.num_elements - begin);
    *scale = scale_of(largest_magnitude(corrected + begin, count), levels);
    quantize(run, corrected + begin, begin, count, *scale++, random, packer, Ahead());
  }
  packer.finish();
}

bool quantize_fused_run(QuantizerRun const& run, void const* gradient, ElementType type,
                        float const* residual_in, float carry) {
  QuantizeBlock* const quantize = choose_quantize_block(run.is_stochastic, true);
  Uncorrected const source = {gradient, type, residual_in, carry};
  RandomWindow random(run.key, run.first_element);
  NibblePacker packer(run.codes);
  float const levels = run.bits == 8 ? 127.0F : 7.0F;
  std::uint64_t const window = window_elements(run.block_elements);
  Ahead const ahead(source, window);
  float* scale = run.scales;
  bool is_finite = true;
  for (std::uint64_t begin = 0; begin < run.num_elements; begin += window) {
    std::uint64_t const end = begin + smaller(window, run.num_elements - begin);
    auto const largest_bits = static_cast<std::uint32_t>(
        compensate_block(source, begin, end - begin, run.residual + begin));
    bool const window_is_finite = largest_bits < kInfinityBits;
    is_finite = is_finite && window_is_finite;
    for (std::uint64_t at = begin; at < end; at += run.block_elements) {
      std::uint64_t const count = smaller(run.block_elements, end - at);
      float* const corrected = run.residual + at;
      float const largest = count == end - begin && window_is_finite
                                ? float_of(largest_bits)
                                : largest_magnitude(corrected, count);
      *scale = scale_of(largest, levels);
      quantize(run, corrected, at, count, *scale++, random, packer, ahead);
    }
  }
  packer.finish();
  return !is_finite;
}

void dequantize_add_run(unsigned char const* codes, unsigned char const* scales, int bits,
                        std::uint64_t block_elements, float weight, float* accumulator,
                        std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t block = begin / block_elements; begin < end; ++block) {
    std::uint64_t const block_end = smaller(end, (block + 1) * block_elements);
    auto const scale = load<float>(scales + block * sizeof(float));
    if (bits == 8) {
      dequantize_bytes(codes + begin, block_end - begin, scale, weight, accumulator + begin);
    } else {
      if (begin % 2 != 0) {
        float const q = static_cast<float>((codes[begin / 2] >> 4 ^ 8) - 8);
        accumulator[begin] = decoded_sum(accumulator[begin], q, scale, weight);
        ++begin;
      }
      dequantize_nibbles(codes + begin / 2, block_end - begin, scale, weight, accumulator + begin);
    }
    begin = block_end;
  }
}

}  // namespace GRADSIEVE_TARGET
}  // namespace gradsieve::kernels::cpu
