// SPDX-License-Identifier: Apache-2.0
// Faults that others had on GPUs, by their numbers in CASES.md. Sizes are those of the emulator.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "gradsieve/registry.hpp"

#include "kernels/select_layout.hpp"
#include "tests/equivalence/cuda/cuda_cases.hpp"

namespace gradsieve::testing {
namespace {

/// What top-k chooses of a gradient on the device.
std::vector<std::uint32_t> topk_on_device(std::span<std::byte const> bytes, DType dtype,
                                          std::uint64_t k) {
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
  return indices.read();
}

std::vector<std::uint32_t> topk_on_device(std::vector<float> const& gradient, std::uint64_t k) {
  return topk_on_device(std::as_bytes(std::span(gradient)), DType::f32, k);
}

std::vector<std::uint32_t> first_numbers(std::uint32_t count) {
  std::vector<std::uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0U);
  return numbers;
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
