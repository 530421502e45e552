// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/equivalence/cuda/cuda_cases.hpp"

namespace gradsieve::testing {
namespace {

using kernels::Rounding;

/// A case and how its blocks are coded; all of it drawn.
struct Coding {
  std::uint64_t block_elements;
  int bits;
  Rounding rounding;
  RoundingKey key;

  /// 5000 and 12001 are longer than a tile, the second also odd; 6000 is shorter than a pair of
  /// them.
  explicit Coding(CudaCase const& c) {
    constexpr std::array<std::uint64_t, 12> kBlocks = {256, 1024, 64,   128,  4096,  32,
                                                       1,   3,    1000, 5000, 12001, 2049};
    block_elements = kBlocks[c.draw % kBlocks.size()];
    bits = (c.draw >> 8 & 1) == 0 ? 8 : 4;
    rounding = (c.draw >> 9 & 1) == 0 ? Rounding::nearest : Rounding::stochastic;
    constexpr std::array<std::uint64_t, 4> kFirst = {0, 5, 4096, (1ULL << 35) - 21};
    key = {{0x12345678, 0x9abcdef0}, 77, kFirst[c.draw >> 10 & 3]};
  }
  [[nodiscard]] std::size_t num_blocks(CudaCase const& c) const {
    return static_cast<std::size_t>((c.num_elements + block_elements - 1) / block_elements);
  }
  [[nodiscard]] std::size_t code_bytes(CudaCase const& c) const {
    return bits == 8 ? c.num_elements : (c.num_elements + 1) / 2;
  }
  [[nodiscard]] std::string text() const {
    return "; blocks of " + std::to_string(block_elements) + ", " + std::to_string(bits) +
           " bits, " + (rounding == Rounding::nearest ? "nearest" : "stochastic");
  }
};

struct Outputs {
  std::vector<std::byte> codes;
  std::vector<float> scales;
  std::vector<float> residual;

  Outputs(CudaCase const& c, Coding const& coding)
      : codes(coding.code_bytes(c), std::byte{0xff}),
        scales(coding.num_blocks(c), -1),
        residual(c.num_elements, 7) {}
};

/// The same on the device. Codes start at any byte, scales at any multiple of four.
struct DeviceOutputs {
  OnDevice<std::byte> codes;
  OnDevice<float> scales;
  OnDevice<float> residual;

  DeviceOutputs(CudaStep& step, CudaCase const& c, Outputs const& initial)
      : codes(step, initial.codes, c.residual_offset == 0 ? 0 : c.draw >> 20 & 7),
        scales(step, initial.scales, (c.draw >> 24 & 3) * 4),
        residual(step, initial.residual, c.residual_offset * 4) {}

  void expect(Outputs const& expected) const {
    ASSERT_TRUE(same_bytes(expected.scales, scales.read()));
    ASSERT_TRUE(same_bytes(expected.codes, codes.read()));
    ASSERT_TRUE(same_bytes(expected.residual, residual.read()));
    ASSERT_TRUE(codes.intact() && scales.intact() && residual.intact());
  }
};

TEST(CudaQuantizeFused, IsEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    Coding const coding(c);
    SCOPED_TRACE(c.text() + coding.text());
    auto const stored = stored_as(c.dtype, make_gradient(c.shape, c.num_elements));
    auto before = c.has_residual ? finite_values(c, 9) : std::vector<float>{};
    bool const in_place = c.in_place && c.has_residual;
    Outputs expected(c, coding);
    auto const flags = kernels::ref::quantize_fused({}, {stored.data(), c.num_elements, c.dtype},
                                                    {before, expected.residual, 0.75F}, coding.bits,
                                                    coding.block_elements, coding.rounding,
                                                    coding.key, expected.codes, expected.scales);
    CudaStep step;
    Outputs initial(c, coding);
    if (in_place) initial.residual = before;
    DeviceOutputs const actual(step, c, initial);
    OnDevice<std::byte> const gradient(step, stored, c.offset_elements * size_of(c.dtype));
    OnDevice<float> const carried(step, before, c.residual_offset * 4);
    OnDevice<float> const carry(step, std::vector<float>{0.75F});
    step.set_words({.step = 77});
    RoundingKey key = coding.key;
    if (c.draw % 2 == 0) key.step = StepValue<std::uint64_t>::in_word(&step.words()->step);
    auto const out = actual.residual.span();

    kernels::cuda::quantize_fused(
        step.context(), {gradient.data(), c.num_elements, c.dtype},
        {in_place ? out : carried.span(), out, StepValue<float>::in_word(carry.data())},
        coding.bits, coding.block_elements, coding.rounding, key, actual.codes.span(),
        actual.scales.span());

    ASSERT_TRUE(went_well(step));
    actual.expect(expected);
    if (HasFatalFailure()) return;
    ASSERT_EQ(step.read_words().flags, flags);
  }
}

TEST(CudaQuantize, IsEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    Coding const coding(c);
    SCOPED_TRACE(c.text() + coding.text());
    auto const corrected = finite_values(c, 4);
    Outputs expected(c, coding);
    if (!c.has_residual) expected.residual.clear();
    kernels::ref::quantize({}, corrected, coding.bits, coding.block_elements, coding.rounding,
                           coding.key, expected.codes, expected.scales, expected.residual);
    CudaStep step;
    Outputs initial(c, coding);
    if (!c.has_residual) initial.residual.clear();
    bool const in_place = c.in_place && c.has_residual;
    if (in_place) initial.residual = corrected;
    DeviceOutputs const actual(step, c, initial);
    OnDevice<float> const apart(step, corrected, c.offset_elements * 4);

    kernels::cuda::quantize(step.context(), in_place ? actual.residual.span() : apart.span(),
                            coding.bits, coding.block_elements, coding.rounding, coding.key,
                            actual.codes.span(), actual.scales.span(), actual.residual.span());

    ASSERT_TRUE(went_well(step));
    actual.expect(expected);
    if (HasFatalFailure()) return;
  }
}

// Any exponent and any mantissa of the maximum: the scale may have to be raised or lowered.
TEST(CudaQuantizeOfAnyFiniteFloat, IsEquivalentToRef) {
  CudaCase c = {.num_elements = is_quick_subset() ? 512U : 4096U};
  std::vector<float> corrected(c.num_elements);
  for (std::size_t i = 0; i < corrected.size(); ++i) {
    corrected[i] = std::bit_cast<float>(static_cast<std::uint32_t>(mix64(i)));
    bool const is_finite = std::abs(corrected[i]) <= std::numeric_limits<float>::max();
    if (!is_finite || i % 64 == 1) corrected[i] = std::numeric_limits<float>::lowest();
  }
  for (std::uint64_t const block_elements : {1U, 2U}) {
    for (int const bits : {8, 4}) {
      for (Rounding const rounding : {Rounding::nearest, Rounding::stochastic}) {
        Coding coding(c);
        coding.block_elements = block_elements;
        coding.bits = bits;
        coding.rounding = rounding;
        SCOPED_TRACE(coding.text());
        Outputs expected(c, coding);
        kernels::ref::quantize({}, corrected, bits, block_elements, rounding, coding.key,
                               expected.codes, expected.scales, expected.residual);
        CudaStep step;
        DeviceOutputs const actual(step, c, Outputs(c, coding));
        OnDevice<float> const apart(step, corrected);

        kernels::cuda::quantize(step.context(), apart.span(), bits, block_elements, rounding,
                                coding.key, actual.codes.span(), actual.scales.span(),
                                actual.residual.span());

        ASSERT_TRUE(went_well(step));
        actual.expect(expected);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Any bytes are codes: −128 and −8 come from a damaged payload only.
TEST(CudaDequantizeAdd, IsEquivalentToRef) {
  for (CudaCase const& c : cuda_cases()) {
    Coding const coding(c);
    SCOPED_TRACE(c.text() + coding.text());
    std::vector<std::byte> codes(coding.code_bytes(c));
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = std::byte(mix64(i) >> 56);
    std::vector<std::byte> scales(coding.num_blocks(c) * sizeof(float));
    for (std::size_t block = 0; block < coding.num_blocks(c); ++block) {
      float const scale =
          c.shape == Shape::one_spike ? 3e38F : 0.01F * static_cast<float>(block % 7);
      std::memcpy(scales.data() + block * sizeof scale, &scale, sizeof scale);
    }
    auto const before = make_gradient(c.shape, c.num_elements, 5);
    std::vector<float> expected = before;
    kernels::ref::dequantize_add({}, codes, scales.data(), coding.bits, coding.block_elements,
                                 -1.0F / 3, expected);
    CudaStep step;
    OnDevice<std::byte> const device_codes(step, codes, c.offset_elements);
    OnDevice<std::byte> const device_scales(step, scales, c.draw >> 20 & 7);
    OnDevice<float> const sum(step, before, c.residual_offset * 4);

    kernels::cuda::dequantize_add(step.context(), device_codes.span(), device_scales.data(),
                                  coding.bits, coding.block_elements, -1.0F / 3, sum.span());

    ASSERT_TRUE(went_well(step));
    ASSERT_TRUE(same_bytes(expected, sum.read()));
    ASSERT_TRUE(sum.intact());
  }
}

}  // namespace
}  // namespace gradsieve::testing
