// SPDX-License-Identifier: Apache-2.0
// Faults that others had on GPUs, by their numbers in CASES.md. Sizes are those of the emulator.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "gradsieve/registry.hpp"

#include "kernels/select_layout.hpp"
#include "tests/equivalence/cuda/cuda_cases.hpp"

namespace gradsieve::testing {
namespace {

/// What top-k chooses of a gradient on the device.
std::vector<std::uint32_t> topk_on_device(std::span<std::byte const> bytes, DType dtype,
                                          std::uint64_t k, std::uint32_t flags = 0) {
  std::uint64_t const n = bytes.size() / size_of(dtype);
  CudaStep step(kernels::topk_workspace_bytes(n, k));
  step.set_words({});
  OnDevice<std::byte> const gradient(step, bytes);
  OnDevice<float> const residual(step, std::vector<float>(n));
  OnDevice<std::uint32_t> const indices(step, std::vector<std::uint32_t>(k));
  OnDevice<float> const values(step, std::vector<float>(k));
  OnDevice<SparseCounts> const counts(step, std::vector<SparseCounts>(1));
  SparseView selection{.indices = indices.span(), .values = values.span(), .counts = counts.data()};
  kernels::cuda::topk(step.context(), {gradient.data(), n, dtype}, {{}, residual.span(), 1.0F}, k,
                      selection);
  EXPECT_TRUE(went_well(step));
  EXPECT_EQ(counts.read()[0].num_indices, k);
  EXPECT_EQ(step.read_words().flags, flags);
  return indices.read();
}

std::vector<std::uint32_t> topk_on_device(std::vector<float> const& gradient, std::uint64_t k,
                                          std::uint32_t flags = 0) {
  return topk_on_device(std::as_bytes(std::span(gradient)), DType::f32, k, flags);
}

std::vector<std::uint32_t> first_numbers(std::uint32_t count) {
  std::vector<std::uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0U);
  return numbers;
}

TEST(CudaReported, SelectC01NonFiniteElementsCountAsZero) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(topk_on_device({kNan, kInfinity, kInfinity, 3, kInfinity, -7}, 2, kStepNonFinite),
            (std::vector<std::uint32_t>{3, 5}));
}

// Other orders of blocks are runs of their own; on a device there are 50 here.
TEST(CudaReported, SelectC02TiesGoToTheLowestIndex) {
  std::vector<float> gradient(65536);
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = i % 2 == 0 ? 0.25F : -0.25F;
  gradient[100] = 1;
  gradient[5000] = -1;
  gradient[60000] = 1;
  for (int run = 0; run < (is_emulated() ? 1 : 50); ++run) {
    ASSERT_EQ(topk_on_device(gradient, 7),
              (std::vector<std::uint32_t>{0, 1, 2, 3, 100, 5000, 60000}));
  }
}

// As many as the density says, at the size of one real layer, where there is a device for it.
TEST(CudaReported, SelectC08FindsTheCutForADensity) {
  std::size_t const n = is_emulated() ? 190'000 : 19'000'000;
  std::vector<float> const gradient = make_gradient(Shape::gaussian, n, 8);
  std::vector<std::uint32_t> const chosen = topk_on_device(gradient, n / 100);
  float least = std::numeric_limits<float>::infinity();
  for (std::uint32_t const i : chosen) least = std::min(least, std::fabs(gradient[i]));
  std::size_t num_above = 0;
  std::size_t num_reached = 0;
  for (float const x : gradient) {
    num_above += std::fabs(x) > least ? 1 : 0;
    num_reached += std::fabs(x) >= least ? 1 : 0;
  }
  EXPECT_LT(num_above, n / 100);
  EXPECT_GE(num_reached, n / 100);
  EXPECT_TRUE(std::ranges::adjacent_find(chosen, std::greater_equal<>()) == chosen.end());
}

TEST(CudaReported, SelectC03BothZerosAreOneTie) {
  EXPECT_EQ(topk_on_device({-0.0F, 0.0F, -0.0F, 5.0F, 0.0F, -0.0F}, 4), first_numbers(4));
  std::vector<float> zeros(100000);
  for (std::size_t i = 0; i < zeros.size(); i += 3) zeros[i] = -0.0F;
  zeros[77777] = 1.0F;
  std::vector<std::uint32_t> expected = first_numbers(999);
  expected.push_back(77777);
  EXPECT_EQ(topk_on_device(zeros, 1000), expected);
}

TEST(CudaReported, SelectC05IndicesAreAsWideAsTheTensorAsksFor) {
  for (std::size_t const n : {40000, 70000}) {
    std::vector<float> gradient(n);
    gradient[n - 1] = 9.0F;
    gradient[32768] = 8.0F;
    gradient[5] = 7.0F;
    std::vector<std::byte> const halves = stored_as(DType::f16, gradient);
    EXPECT_EQ(topk_on_device(halves, DType::f16, 3),
              (std::vector<std::uint32_t>{5, 32768, static_cast<std::uint32_t>(n - 1)}));
  }
}

// Rows are chosen from one by one here, so that no index can leave its own.
TEST(CudaReported, SelectC06ChoosesOnlyWithinEachRow) {
  constexpr std::size_t kRow = 40000;
  for (std::uint64_t row = 0; row < (is_quick_subset() ? 2U : 8U); ++row) {
    std::vector<float> const values = make_gradient(Shape::gaussian, kRow, row);
    std::vector<std::byte> const halves = stored_as(DType::f16, values);
    std::vector<std::uint32_t> const chosen = topk_on_device(halves, DType::f16, 25);
    EXPECT_TRUE(std::ranges::all_of(chosen, [](std::uint32_t i) { return i < kRow; }));
    EXPECT_TRUE(std::ranges::is_sorted(chosen));
  }
}

// Sizes above 2^31 by their layout, without the memory.
TEST(CudaReported, SelectC07CountsDoNotWrapAboveTwoToThe31) {
  constexpr std::uint64_t kLong = (std::uint64_t{1} << 31) + 12345;
  using kernels::cuda::kItemsPerTile;
  EXPECT_EQ(kernels::cuda::num_tiles_of(kLong), kLong / kItemsPerTile + 1);
  EXPECT_GT(kernels::cuda::select_bytes(kLong), kernels::cuda::select_bytes(kLong / 2));
  EXPECT_GE(kernels::cuda::topk_bytes(kLong, kLong / 100), kLong / 100 * 8);
  for (std::string const spec : {"topk(density=1)", "topk(density=0.01) | int8", "int4",
                                 "threshold(value=1, max_density=1) | bf16", "sign"}) {
    Chain const chain = make_chain(spec + " ; feedback=residual");
    TensorInfo piece;
    piece.num_elements = kMaxPieceElements / 2;  // the longest on a device
    std::size_t const num_bytes = chain.compressor->fixed_bytes(0, piece);
    EXPECT_LE(num_bytes, chain.compressor->round(0, piece).capacity_bytes) << spec;
    EXPECT_GT(num_bytes, piece.num_elements / 100) << spec;
    // The last of the indices that fill a set up still has 32 bits.
    EXPECT_LE(2 * piece.num_elements, std::uint64_t{1} << 32);
  }
}

/// A quantizer with feedback on the device, and what its payload decodes to there.
struct QuantizedOnDevice {
  std::vector<std::byte> codes;
  std::vector<float> scales;
  std::vector<float> residual;
  std::vector<float> decoded;

  QuantizedOnDevice(std::vector<float> const& values, std::vector<float> const& before, int bits,
                    std::uint64_t block_elements) {
    std::size_t const n = values.size();
    CudaStep step;
    step.set_words({});
    OnDevice<float> const gradient(step, values);
    OnDevice<float> const rest(step, before);
    OnDevice<float> const sum(step, std::vector<float>(n));
    OnDevice<std::byte> const out(
        step, std::vector<std::byte>((n * static_cast<unsigned>(bits) + 7) / 8));
    OnDevice<float> const steps(step,
                                std::vector<float>((n + block_elements - 1) / block_elements));
    kernels::cuda::quantize_fused(step.context(), {gradient.data(), n, DType::f32},
                                  {rest.span(), rest.span(), 1.0F}, bits, block_elements,
                                  kernels::Rounding::nearest, {}, out.span(), steps.span());
    kernels::cuda::dequantize_add(step.context(), out.span(),
                                  reinterpret_cast<std::byte const*>(steps.data()), bits,
                                  block_elements, 1.0F, sum.span());
    EXPECT_TRUE(went_well(step));
    EXPECT_EQ(step.read_words().flags, 0U);
    codes = out.read();
    scales = steps.read();
    residual = rest.read();
    decoded = sum.read();
  }
};

TEST(CudaReported, QuantC11ABlockOfZerosDecodesToZeros) {
  std::vector<float> gradient = make_gradient(Shape::gaussian, 192);
  std::vector<float> const zeros(192);
  for (int const bits : {8, 4}) {
    QuantizedOnDevice const noise(gradient, zeros, bits, 64);
    std::fill(gradient.begin() + 64, gradient.begin() + 128, 0.0F);
    QuantizedOnDevice const q(gradient, zeros, bits, 64);
    for (std::size_t i = 0; i < 192; ++i) {
      bool const in_zero_block = i >= 64 && i < 128;
      ASSERT_EQ(q.decoded[i], in_zero_block ? 0.0F : noise.decoded[i]) << i;
      if (in_zero_block) {
        ASSERT_EQ(q.residual[i], 0.0F) << i;
      }
    }
    EXPECT_EQ(q.scales[1], 0.0F);
    gradient = make_gradient(Shape::gaussian, 192);
  }
}

TEST(CudaReported, QuantC12AConstantBlockDecodesToItsConstant) {
  std::vector<float> nearly(64, 0.01F);
  nearly[63] = 0.0100001F;
  for (auto const& block : {std::vector<float>(64, 0.01F), std::vector<float>(64, -3e4F), nearly}) {
    for (int const bits : {8, 4}) {
      QuantizedOnDevice const q(block, std::vector<float>(64), bits, 64);
      float const one_ulp = std::fabs(std::nextafter(block[0], 1e9F) - block[0]);
      // 0.0100001 is 107 ulp above its neighbours, which share its level.
      float const spread = std::fabs(block[63] - block[0]);
      for (std::size_t i = 0; i < 64; ++i) {
        EXPECT_LE(std::fabs(q.decoded[i] - block[i]), one_ulp + spread) << i;
        EXPECT_LE(std::fabs(q.residual[i]), one_ulp + spread) << i;
      }
    }
  }
}

// Blocks are counted in the flat array: a block that spans two rows serves both with one scale.
TEST(CudaReported, QuantC13RowsThatAreNoMultipleOfTheBlockKeepTheirSigns) {
  std::vector<float> matrix;
  for (int i = 0; i < 30; ++i) {
    matrix.push_back(static_cast<float>(std::pow(100.0, i / 10)) * (i % 2 == 0 ? 1.0F : -1.0F));
  }
  QuantizedOnDevice const q(matrix, std::vector<float>(30), 8, 4);
  ASSERT_EQ(q.scales.size(), 8U);
  for (std::size_t i = 0; i < 30; ++i) {
    auto const block =
        std::span(matrix).subspan(i / 4 * 4, std::min<std::size_t>(4, 30 - i / 4 * 4));
    float largest = 0;
    for (float const x : block) largest = std::max(largest, std::fabs(x));
    EXPECT_LE(std::fabs(q.decoded[i] - matrix[i]), largest / 127) << i;
    EXPECT_GE(q.decoded[i] * matrix[i], 0.0F) << i;
  }
}

TEST(CudaReported, QuantC14PacksAnyCountAndKeepsWhatTheCodesLeaveOut) {
  for (std::size_t n = 1; n <= 33; n += is_quick_subset() ? 8 : 1) {
    std::vector<float> gradient(n);
    for (std::size_t i = 0; i < n; ++i) {
      gradient[i] = static_cast<float>(static_cast<int>(i % 15) - 7);
    }
    gradient[n / 2] = 7.0F;
    QuantizedOnDevice const q(gradient, std::vector<float>(n), 4, 64);
    ASSERT_EQ(q.codes.size(), (n * 4 + 7) / 8);
    EXPECT_EQ(q.decoded, gradient) << n;
    if (n % 2 != 0) {
      EXPECT_EQ(q.codes.back() >> 4, std::byte{0}) << n;
    }
  }
  std::vector<float> const gradient = {0.7F, -0.2F, 0.49F, -0.5F, 0.3F};
  std::vector<float> const before = {0.0F, -0.4F, 0.02F, 0.0F, 0.3F};
  QuantizedOnDevice const q(gradient, before, 4, 8);
  EXPECT_FLOAT_EQ(q.scales[0], 0.1F);
  for (std::size_t i = 0; i < 5; ++i) {
    float const corrected = gradient[i] + before[i];
    EXPECT_NEAR(q.decoded[i] + q.residual[i], corrected, 1e-6F) << i;
    EXPECT_LE(std::fabs(q.residual[i]), 0.05F + 1e-6F) << i;
  }
}

TEST(CudaReported, QuantC15TensorsAreRoundedIndependently) {
  std::size_t const n = is_quick_subset() ? 20000 : 200000;
  CudaStep step;
  step.set_words({});
  std::vector<std::vector<std::byte>> codes;
  for (TensorId const tensor : {TensorId{1}, TensorId{2}}) {
    OnDevice<std::byte> const out(step, std::vector<std::byte>(n));
    OnDevice<float> const scales(step, std::vector<float>(n));
    // A block of one element and L = 1 would round nothing: the scale comes from a neighbour of
    // 127.
    std::vector<float> with_largest(n, 0.3F);
    for (std::size_t i = 0; i < n; i += 256) with_largest[i] = 127.0F;
    OnDevice<float> const gradient(step, with_largest);
    RoundingKey const key{philox_key(7, tensor, Purpose::quantize, 0), 5, 0};
    kernels::cuda::quantize(step.context(), gradient.span(), 8, 256, kernels::Rounding::stochastic,
                            key, out.span(), scales.span(), {});
    codes.push_back(out.read());
  }
  ASSERT_TRUE(went_well(step));
  double sums[2] = {};
  double same = 0;
  double count = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i % 256 == 0) continue;
    count += 1;
    for (std::size_t t : {0, 1}) sums[t] += std::to_integer<int>(codes[t][i]);
    same += codes[0][i] == codes[1][i] ? 1 : 0;
  }
  double const five_sigma = 5 * std::sqrt(0.3 * 0.7 / count);
  EXPECT_NEAR(sums[0] / count, 0.3, five_sigma);
  EXPECT_NEAR(sums[1] / count, 0.3, five_sigma);
  EXPECT_NEAR(same / count, 0.58, 5 * std::sqrt(0.58 * 0.42 / count));
}

TEST(CudaReported, QuantC17EveryBlockSizeIsThatOfTheCpu) {
  std::size_t const n = is_quick_subset() ? 8192 : 65536;
  std::vector<float> const values = make_gradient(Shape::gaussian, n, 3);
  for (int const bits : {8, 4}) {
    for (std::uint64_t const block : {64U, 128U, 256U, 512U, 1024U, 2048U, 4096U}) {
      CudaStep step;
      OnDevice<float> const corrected(step, values);
      OnDevice<std::byte> const codes(step, std::vector<std::byte>(n * bits / 8));
      OnDevice<float> const scales(step, std::vector<float>(n / block));
      OnDevice<float> const rest(step, std::vector<float>(n));
      kernels::cuda::quantize(step.context(), corrected.span(), bits, block,
                              kernels::Rounding::nearest, {}, codes.span(), scales.span(),
                              rest.span());
      std::vector<std::byte> expected_codes(n * bits / 8);
      std::vector<float> expected_scales(n / block);
      std::vector<float> expected_rest(n);
      kernels::ref::quantize({}, values, bits, block, kernels::Rounding::nearest, {},
                             expected_codes, expected_scales, expected_rest);
      ASSERT_TRUE(went_well(step));
      EXPECT_TRUE(same_bytes(expected_codes, codes.read())) << bits << ' ' << block;
      EXPECT_TRUE(same_bytes(expected_scales, scales.read())) << bits << ' ' << block;
      EXPECT_TRUE(same_bytes(expected_rest, rest.read())) << bits << ' ' << block;
    }
  }
}

// A payload's indices ascend strictly, so none comes twice: what claims otherwise is refused, and
// the contributions of ranks add up in their order.
TEST(CudaReported, SparseC36NothingIsKeptOfRepeatsAndEveryRankCounts) {
  CudaStep step;
  step.set_words({});
  OnDevice<std::uint32_t> const repeated(step, std::vector<std::uint32_t>{2, 2, 4});
  kernels::cuda::check_indices(step.context(), std::span<std::uint32_t const>(repeated.span()), 5);
  EXPECT_EQ(step.read_words().flags, kStepCorrupt);
  OnDevice<float> const sum(step, std::vector<float>(5));
  OnDevice<std::uint32_t> const one(step, std::vector<std::uint32_t>{2});
  OnDevice<std::uint32_t> const two(step, std::vector<std::uint32_t>{2, 4});
  OnDevice<float> const first(step, std::vector<float>{1.0F});
  OnDevice<float> const second(step, std::vector<float>{2.5F, -1.0F});
  auto const add = [&](OnDevice<std::uint32_t> const& indices, OnDevice<float> const& values) {
    kernels::cuda::scatter_add(step.context(), std::span<std::uint32_t const>(indices.span()), 1,
                               values.span(), 1.0F, sum.span());
  };
  add(one, first);
  add(two, second);
  ASSERT_TRUE(went_well(step));
  EXPECT_EQ(sum.read(), (std::vector<float>{0.0F, 0.0F, 3.5F, 0.0F, -1.0F}));
}

}  // namespace
}  // namespace gradsieve::testing
