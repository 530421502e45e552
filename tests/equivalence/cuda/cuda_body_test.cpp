// SPDX-License-Identifier: Apache-2.0
// What stands around the coded elements of a body: on the device a check answers in the step's
// flags, and a selection is filled up to its room.
#include <array>
#include <cmath>
#include <limits>

#include "tests/equivalence/cuda/cuda_cases.hpp"

namespace gradsieve::testing {
namespace {

using Bytes8 = std::vector<std::byte>;

Bytes8 some_bytes(std::size_t count) {
  Bytes8 bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 37 + 11);
  return bytes;
}

/// What a check raised on the device is what it answers in ref.
void expect_same_answer(CudaStep& step, bool expected) {
  bool const raised = (step.read_words().flags & kStepCorrupt) != 0;
  EXPECT_EQ(!raised, expected);
  step.set_words({});
}

TEST(CudaFields, ArePutAndChecked) {
  CudaStep step;
  step.set_words({});
  for (std::size_t const count : {1, 4, 31, 32, 64}) {
    Bytes8 const fields = some_bytes(count);
    OnDevice<std::byte> const place(step, Bytes8(count + 3), count % 5);
    kernels::cuda::put_fields(step.context(), fields, place.data());
    Bytes8 expected = fields;
    expected.resize(count + 3);
    EXPECT_TRUE(same_bytes(expected, place.read()));
    kernels::cuda::check_fields(step.context(), fields, place.data());
    expect_same_answer(step, true);
    for (std::size_t const wrong : {std::size_t{0}, count - 1}) {
      Bytes8 others = fields;
      others[wrong] ^= std::byte{0x10};
      kernels::cuda::check_fields(step.context(), others, place.data());
      expect_same_answer(step, false);
    }
    ASSERT_TRUE(went_well(step));
    EXPECT_TRUE(place.intact());
  }
}

TEST(CudaClearAndCopy, TakeAnyAlignment) {
  CudaStep step;
  for (std::size_t const offset : {0, 1, 2, 3, 7}) {
    for (std::size_t const count : {0, 1, 3, 15, 16, 17, 4099}) {
      OnDevice<std::byte> const from(step, some_bytes(count), offset);
      OnDevice<std::byte> const to(step, Bytes8(count, std::byte{0xEE}), offset / 2);
      kernels::cuda::copy(step.context(), from.span(), to.span());
      EXPECT_TRUE(same_bytes(some_bytes(count), to.read()));
      kernels::cuda::clear(step.context(), to.span());
      EXPECT_TRUE(same_bytes(Bytes8(count), to.read()));
      EXPECT_TRUE(from.intact() && to.intact());
    }
  }
  ASSERT_TRUE(went_well(step));
}

TEST(CudaCheckScales, AnswersAsRef) {
  CudaStep step;
  step.set_words({});
  float const infinity = std::numeric_limits<float>::infinity();
  for (float const odd : {1.0F, 0.0F, -0.0F, -1.0F, infinity, -infinity, std::nanf(""),
                          std::numeric_limits<float>::max(), 1e-45F}) {
    for (std::size_t const count : {1, 2, 255, 257, 5000}) {
      for (std::size_t const at : {std::size_t{0}, count / 2, count - 1}) {
        std::vector<float> scales(count, 0.25F);
        scales[at] = odd;
        Bytes8 bytes(count * sizeof(float));
        std::memcpy(bytes.data(), scales.data(), bytes.size());
        OnDevice<std::byte> const device(step, bytes, at % 4);
        kernels::cuda::check_scales(step.context(), device.span());
        expect_same_answer(step, kernels::ref::check_scales({}, bytes));
      }
    }
  }
  ASSERT_TRUE(went_well(step));
}

TEST(CudaCheckClear, AnswersAsRef) {
  CudaStep step;
  step.set_words({});
  for (std::size_t const count : {1, 3, 4, 5, 1027}) {
    for (std::size_t const at : {std::size_t{0}, count / 2, count - 1}) {
      for (unsigned const skipped : {0U, 3U, 7U}) {
        for (unsigned const bit : {0U, 3U, 7U}) {
          Bytes8 bytes(count);
          bytes[at] = static_cast<std::byte>(1U << bit);
          Bytes8 mask(count, std::byte{0x08});
          OnDevice<std::byte> const device(step, bytes, bit);
          OnDevice<std::byte> const device_mask(step, mask, bit);
          kernels::cuda::check_clear(step.context(), device.span(), {}, skipped);
          expect_same_answer(step, kernels::ref::check_clear({}, bytes, {}, skipped));
          kernels::cuda::check_clear(step.context(), device.span(), device_mask.span(), skipped);
          expect_same_answer(step, kernels::ref::check_clear({}, bytes, mask, skipped));
        }
      }
    }
  }
  ASSERT_TRUE(went_well(step));
}

TEST(CudaCountSelection, CountsAsRefAndFillsTheRoom) {
  CudaStep step;
  constexpr std::uint64_t kUniverse = 10000;
  for (std::size_t const room : {1, 5, 300, 5000}) {
    for (std::size_t const count : {std::size_t{0}, room / 2, room}) {
      std::vector<std::uint32_t> indices(room, 7);
      std::vector<float> values(room, 3.0F);
      for (std::size_t i = 0; i < count; ++i) indices[i] = static_cast<std::uint32_t>(i);
      std::uint64_t const overflowed = count == room ? 2 : 0;
      StepWords expected;
      ExecContext host;
      host.words = &expected;
      SparseView selection{.indices = indices,
                           .values = values,
                           .num_indices = count,
                           .num_values = count,
                           .num_overflowed = overflowed};
      kernels::ref::count_selection(host, selection, kUniverse);

      step.set_words({});
      OnDevice<std::uint32_t> const device_indices(step, indices);
      OnDevice<float> const device_values(step, values);
      OnDevice<SparseCounts> const counts(step,
                                          std::vector<SparseCounts>{{count, count, overflowed}});
      selection.indices = device_indices.span();
      selection.values = device_values.span();
      selection.counts = counts.data();
      kernels::cuda::count_selection(step.context(), selection, kUniverse);

      StepWords const words = step.read_words();
      EXPECT_EQ(words.kept_elements, expected.kept_elements);
      EXPECT_EQ(words.overflowed_elements, expected.overflowed_elements);
      EXPECT_EQ(words.flags, expected.flags);
      for (std::size_t i = count; i < room; ++i) {
        indices[i] = static_cast<std::uint32_t>(kUniverse + i - count);
        values[i] = 0.0F;
      }
      EXPECT_TRUE(same_bytes(indices, device_indices.read()));
      EXPECT_TRUE(same_bytes(values, device_values.read()));
      EXPECT_TRUE(device_indices.intact() && device_values.intact());
    }
  }
  ASSERT_TRUE(went_well(step));
}

/// A word on the device decides whether a sum is made.
TEST(CudaOnlyIf, LeavesOutWhatAWordSays) {
  CudaStep step;
  std::vector<float> const ones(1000, 1.0F);
  for (std::uint32_t const word : {0U, 1U}) {
    OnDevice<std::uint32_t> const only_if(step, std::vector<std::uint32_t>{word});
    OnDevice<float> const values(step, ones);
    OnDevice<float> const sum(step, ones);
    OnDevice<std::uint32_t> const indices(step, std::vector<std::uint32_t>{0, 5, 999});
    OnDevice<std::byte> const codes(step, Bytes8(1000, std::byte{1}));
    OnDevice<std::byte> const signs(step, Bytes8(125));
    std::vector<float> const scale(1, 1.0F);
    OnDevice<float> const scales(step, scale);
    OnDevice<BFloat16> const halves(step, std::vector<BFloat16>(1000));
    auto const* const scale_bytes = reinterpret_cast<std::byte const*>(scales.data());
    ExecContext ctx = step.context();
    ctx.only_if = only_if.data();
    kernels::cuda::add_scaled(ctx, ConstTensorView(std::span<float const>(values.span())), 1.0F,
                              sum.span());
    kernels::cuda::scatter_add(ctx, std::span<std::uint32_t const>(indices.span()), 1,
                               values.span(), 1.0F, sum.span());
    kernels::cuda::dequantize_add(ctx, codes.span(), scale_bytes, 8, 1000, 1.0F, sum.span());
    kernels::cuda::sign_add(ctx, signs.data(), nullptr, scale_bytes, 1000, 1.0F, sum.span());
    kernels::cuda::store_bf16(ctx, values.span(), {}, halves.span());
    std::vector<float> const result = sum.read();
    EXPECT_EQ(result[0], word == 0 ? 1.0F : 5.0F);
    EXPECT_EQ(result[1], word == 0 ? 1.0F : 4.0F);
    EXPECT_EQ(halves.read()[3].bits, word == 0 ? 0 : 0x3f80);
  }
  ASSERT_TRUE(went_well(step));
}

}  // namespace
}  // namespace gradsieve::testing
