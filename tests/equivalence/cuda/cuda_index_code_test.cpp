// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gtest/gtest.h>

#include "kernels/index_forms.hpp"
#include "tests/equivalence/cuda/cuda_cases.hpp"

namespace gradsieve::testing {
namespace {

using kernels::IndexForm;

struct IndexCase {
  IndexForm form;
  std::uint64_t universe;
  std::size_t num_indices;
  std::size_t offset_bytes;
};

[[nodiscard]] std::string text(IndexCase const& c) {
  return (c.form == IndexForm::bitmap ? "bitmap, " : "elias_fano, ") +
         std::to_string(c.num_indices) + " of " + std::to_string(c.universe) + ", offset " +
         std::to_string(c.offset_bytes);
}

[[nodiscard]] std::vector<IndexCase> index_cases() {
  std::vector<IndexCase> cases;
  for (IndexForm const form : {IndexForm::bitmap, IndexForm::elias_fano}) {
    for (std::uint64_t const universe : {1, 2, 31, 33, 1000, 8192, 40001, 70000}) {
      for (std::uint64_t const parts : {1, 2, 3, 9, 100, 5000}) {
        std::uint64_t const k = universe / parts;
        std::uint64_t const draw = mix64(universe * 8 + parts);
        if (k == 0 || (is_quick_subset() && draw % 4 != 0)) continue;
        cases.push_back({form, universe, k, draw >> 8 & 3});
      }
    }
  }
  return cases;
}

/// One in each of k equal stretches, the last of all among them.
[[nodiscard]] std::vector<std::uint32_t> spread(IndexCase const& c) {
  std::vector<std::uint32_t> indices(c.num_indices);
  kernels::ref::randomk({}, {5, 6}, 1, c.universe, indices);
  indices.back() = static_cast<std::uint32_t>(c.universe - 1);
  return indices;
}

[[nodiscard]] std::vector<std::byte> code_of(IndexCase const& c,
                                             std::vector<std::uint32_t> const& indices) {
  std::vector<std::byte> code(kernels::index_bytes(c.form, c.universe, indices.size()));
  ExecContext ref;
  ref.backend = Backend::ref;
  kernels::encode_indices(ref, c.form, indices, c.universe, code);
  return code;
}

/// Decodes on the device; true if nothing was found wrong.
[[nodiscard]] bool decode(IndexCase const& c, std::vector<std::byte> const& code,
                          std::vector<std::uint32_t>& indices) {
  CudaStep step(kernels::index_decode_workspace_bytes(code.size()));
  OnDevice<std::byte> const coded(step, code, c.offset_bytes);
  OnDevice<std::uint32_t> const decoded(step, std::vector<std::uint32_t>(c.num_indices, 7));
  step.set_words({});
  bool const is_possible = kernels::decode_indices(
      step.context(), static_cast<std::uint32_t>(c.form), coded.span(), c.universe, decoded.span());
  EXPECT_TRUE(went_well(step));
  EXPECT_TRUE(decoded.intact());
  indices = decoded.read();
  return is_possible && (step.read_words().flags & kStepCorrupt) == 0;
}

TEST(CudaIndexCode, EncodesAsRef) {
  for (IndexCase const& c : index_cases()) {
    SCOPED_TRACE(text(c));
    auto const indices = spread(c);
    auto const expected = code_of(c, indices);
    CudaStep step;
    OnDevice<std::uint32_t> const chosen(step, indices);
    OnDevice<std::byte> const code(step, std::vector<std::byte>(expected.size(), std::byte{0xee}),
                                   c.offset_bytes);
    kernels::encode_indices(step.context(), c.form, chosen.span(), c.universe, code.span());
    ASSERT_TRUE(went_well(step));
    ASSERT_TRUE(same_bytes(expected, code.read()));
    ASSERT_TRUE(code.intact());
  }
}

TEST(CudaIndexCode, TakesACountThatOnlyTheDeviceKnows) {
  IndexCase const c = {IndexForm::elias_fano, 40001, 300, 0};
  auto const indices = spread(c);
  auto const expected = code_of(c, indices);
  std::vector<std::uint32_t> room = indices;
  room.resize(1000, 9);
  CudaStep step;
  OnDevice<std::uint32_t> const chosen(step, room);
  OnDevice<std::uint64_t> const count(step, std::vector<std::uint64_t>{c.num_indices});
  OnDevice<std::byte> const code(
      step, std::vector<std::byte>(kernels::index_bound(c.form, c.universe, room.size())));
  kernels::cuda::elias_fano_encode(step.context(), {chosen.span(), count.data()}, c.universe,
                                   code.span());
  ASSERT_TRUE(went_well(step));
  auto written = code.read();
  written.resize(expected.size());
  EXPECT_TRUE(same_bytes(expected, written));
}

TEST(CudaIndexCode, DecodesWhatRefEncodes) {
  for (IndexCase const& c : index_cases()) {
    SCOPED_TRACE(text(c));
    auto const indices = spread(c);
    std::vector<std::uint32_t> decoded;
    ASSERT_TRUE(decode(c, code_of(c, indices), decoded));
    ASSERT_TRUE(same_bytes(indices, decoded));
  }
}

// Every flipped bit, as far as it matters: what ref refuses is flagged, what ref takes is the same.
TEST(CudaIndexCode, AgreesWithRefOnEveryFlippedBit) {
  for (IndexForm const form : {IndexForm::bitmap, IndexForm::elias_fano}) {
    IndexCase const c = {form, 203, form == IndexForm::bitmap ? 90U : 21U, 1};
    auto const indices = spread(c);
    auto const code = code_of(c, indices);
    for (std::size_t bit = 0; bit < code.size() * 8; ++bit) {
      if (is_quick_subset() && bit % 7 != 0) continue;
      SCOPED_TRACE(text(c) + ", bit " + std::to_string(bit));
      auto damaged = code;
      damaged[bit / 8] ^= std::byte{1} << (bit % 8);
      std::vector<std::uint32_t> expected(c.num_indices);
      ExecContext ref;
      ref.backend = Backend::ref;
      bool const is_code = kernels::decode_indices(ref, static_cast<std::uint32_t>(form), damaged,
                                                   c.universe, expected);
      std::vector<std::uint32_t> decoded;
      ASSERT_EQ(decode(c, damaged, decoded), is_code);
      if (is_code) {
        ASSERT_TRUE(same_bytes(expected, decoded));
      }
    }
  }
}

}  // namespace
}  // namespace gradsieve::testing
