// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/many_ops.hpp"
#include "tests/equivalence/cuda/cuda_cases.hpp"

namespace gradsieve::testing {
namespace {

using kernels::Rounding;
using kernels::Segment;

/// A model of small tensors, twice: in host memory for ref and in device memory for cuda, at the
/// same offsets. Some tensors are empty, some have no residual, some take several runs.
class ManyTensors {
 public:
  ManyTensors(CudaStep& step, DType dtype, int bits, std::uint64_t block_elements)
      : step_(step), dtype_(dtype), block_elements_(block_elements) {
    std::vector<std::size_t> const counts = {5, 0, 4096, 1, 9001, 128, 3, 4097, 1000, 64};
    for (std::size_t const count : counts) add(count, bits);
    segment_of_run_ = kernels::plan_runs(host_, block_elements);
    for (std::size_t i = 0; i < host_.size(); ++i) device_[i].first_run = host_[i].first_run;
    table_ = std::make_unique<OnDevice<Segment>>(step, device_);
    runs_ = std::make_unique<OnDevice<std::uint32_t>>(step, segment_of_run_);
  }

  [[nodiscard]] kernels::SegmentTable host() const { return {host_, segment_of_run_}; }
  [[nodiscard]] kernels::SegmentTable device() const { return {table_->span(), runs_->span()}; }
  [[nodiscard]] std::size_t num_runs() const { return segment_of_run_.size(); }

  void expect_same() const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      SCOPED_TRACE("tensor " + std::to_string(i));
      Tensor const& t = *tensors_[i];
      ASSERT_TRUE(same_bytes(t.out, t.device_out->read()));
      ASSERT_TRUE(same_bytes(t.sum, t.device_sum->read()));
      ASSERT_TRUE(same_bytes(t.codes, t.device_codes->read()));
      ASSERT_TRUE(same_bytes(t.scales, t.device_scales->read()));
      ASSERT_TRUE(t.device_out->intact() && t.device_sum->intact() && t.device_codes->intact() &&
                  t.device_scales->intact());
    }
  }

 private:
  struct Tensor {
    std::vector<std::byte> gradient;
    std::vector<float> in;
    std::vector<float> out;
    std::vector<float> sum;
    std::vector<std::byte> codes;
    std::vector<float> scales;
    std::unique_ptr<OnDevice<std::byte>> device_gradient;
    std::unique_ptr<OnDevice<float>> device_in;
    std::unique_ptr<OnDevice<float>> device_out;
    std::unique_ptr<OnDevice<float>> device_sum;
    std::unique_ptr<OnDevice<std::byte>> device_codes;
    std::unique_ptr<OnDevice<float>> device_scales;
  };

  void add(std::size_t n, int bits) {
    std::uint64_t const draw = mix64(n + tensors_.size());
    std::size_t const offset = draw % 3 == 0 ? 0 : draw >> 8 & 7;
    Shape const shape = kAllShapes[draw % kAllShapes.size()];
    auto tensor = std::make_unique<Tensor>();
    Tensor& t = *tensor;
    t.gradient = stored_as(dtype_, make_gradient(shape, n, draw));
    if (draw % 4 != 0) t.in = make_gradient(Shape::heavy_tailed, n, 7);
    t.out = draw % 5 == 0 && !t.in.empty() ? t.in : std::vector<float>(n, 3);
    bool const in_place = draw % 5 == 0 && !t.in.empty();
    t.sum = make_gradient(Shape::gaussian, n, 8);
    t.codes.resize(bits == 8 ? n : (n + 1) / 2, std::byte{0x71});
    t.scales.resize(static_cast<std::size_t>((n + block_elements_ - 1) / block_elements_), 0.25F);
    std::size_t const floats = offset * 4;
    t.device_gradient =
        std::make_unique<OnDevice<std::byte>>(step_, t.gradient, offset * size_of(dtype_));
    t.device_in = std::make_unique<OnDevice<float>>(step_, t.in, floats);
    t.device_out = std::make_unique<OnDevice<float>>(step_, t.out, floats);
    t.device_sum = std::make_unique<OnDevice<float>>(step_, t.sum, floats);
    t.device_codes = std::make_unique<OnDevice<std::byte>>(step_, t.codes, offset);
    t.device_scales = std::make_unique<OnDevice<float>>(step_, t.scales, (draw >> 16 & 3) * 4);
    Segment segment = {.num_elements = n,
                       .key = {static_cast<std::uint32_t>(draw), 5},
                       .first_element = draw >> 20 & 63};
    segment.gradient = t.gradient.data();
    segment.residual_in = t.in.empty() ? nullptr : in_place ? t.out.data() : t.in.data();
    segment.residual_out = t.out.data();
    segment.accumulator = t.sum.data();
    segment.codes = t.codes.data();
    segment.scales = t.scales.data();
    host_.push_back(segment);
    segment.gradient = t.device_gradient->data();
    segment.residual_in = t.in.empty() ? nullptr
                          : in_place   ? t.device_out->data()
                                       : t.device_in->data();
    segment.residual_out = t.device_out->data();
    segment.accumulator = t.device_sum->data();
    segment.codes = t.device_codes->data();
    segment.scales = t.device_scales->data();
    device_.push_back(segment);
    tensors_.push_back(std::move(tensor));
  }

  CudaStep& step_;
  DType dtype_;
  std::uint64_t block_elements_;
  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::vector<Segment> host_;
  std::vector<Segment> device_;
  std::vector<std::uint32_t> segment_of_run_;
  std::unique_ptr<OnDevice<Segment>> table_;
  std::unique_ptr<OnDevice<std::uint32_t>> runs_;
};

TEST(CudaCompensateMany, IsEquivalentToRef) {
  for (DType const dtype : kGradientTypes) {
    SCOPED_TRACE(std::string(dtype_name(dtype)));
    CudaStep step;
    ManyTensors tensors(step, dtype, 8, 1);
    OnDevice<float> const carry(step, std::vector<float>{0.7F});
    auto const flags = kernels::ref::compensate_many({}, tensors.host(), dtype, 0.7F);

    auto const returned = kernels::cuda::compensate_many(step.context(), tensors.device(), dtype,
                                                         StepValue<float>::in_word(carry.data()));

    ASSERT_TRUE(went_well(step));
    ASSERT_EQ(returned, 0U);
    ASSERT_EQ(step.read_words().flags, flags);
    tensors.expect_same();
  }
}

TEST(CudaQuantizeMany, IsEquivalentToRef) {
  for (DType const dtype : kGradientTypes) {
    for (int const bits : {8, 4}) {
      for (std::uint64_t const block_elements : {1U, 3U, 64U, 256U, 1024U, 3000U, 5001U}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + ", " + std::to_string(bits) +
                     " bits, block " + std::to_string(block_elements));
        if (is_quick_subset() && (block_elements != 256 || dtype == DType::f16)) continue;
        Rounding const rounding = (block_elements + static_cast<unsigned>(bits)) % 2 == 0
                                      ? Rounding::nearest
                                      : Rounding::stochastic;
        CudaStep step;
        ManyTensors tensors(step, dtype, bits, block_elements);
        step.set_words({.step = 9});
        auto const flags = kernels::ref::quantize_many({}, tensors.host(), dtype, 1.0F, bits,
                                                       block_elements, rounding, 9);

        kernels::cuda::quantize_many(step.context(), tensors.device(), dtype, 1.0F, bits,
                                     block_elements, rounding,
                                     StepValue<std::uint64_t>::in_word(&step.words()->step));

        ASSERT_TRUE(went_well(step));
        ASSERT_EQ(step.read_words().flags, flags);
        tensors.expect_same();
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(CudaDequantizeAddMany, IsEquivalentToRef) {
  for (int const bits : {8, 4}) {
    for (std::uint64_t const block_elements : {3U, 256U, 1000U, 5001U}) {
      SCOPED_TRACE(std::to_string(bits) + " bits, block " + std::to_string(block_elements));
      CudaStep step;
      ManyTensors tensors(step, DType::f32, bits, block_elements);
      auto host = tensors.host();
      kernels::ref::dequantize_add_many({}, host, bits, block_elements, 0.3F);
      kernels::cuda::dequantize_add_many(step.context(), tensors.device(), bits, block_elements,
                                         0.3F);

      ASSERT_TRUE(went_well(step));
      tensors.expect_same();
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CudaMany, TakesNoTensors) {
  CudaStep step;
  EXPECT_EQ(kernels::cuda::compensate_many(step.context(), {}, DType::f32, 1.0F), 0U);
  kernels::cuda::dequantize_add_many(step.context(), {}, 8, 256, 1.0F);
  EXPECT_TRUE(went_well(step));
}

TEST(CudaWriteHeader, IsEquivalentToRef) {
  for (std::uint32_t const flags : {0U, kStepNonFinite, kStepOverflow, kStepCorrupt, 7U}) {
    for (std::size_t const offset : {0, 1, 16}) {
      PayloadHeader const header = {.codec = 3,
                                    .flags = kFlagOverflow,
                                    .rank = 2,
                                    .plan_hash = 0x123456789abcdef0,
                                    .num_elements = 1ULL << 33,
                                    .num_pieces = 5,
                                    .sequence = 8};
      StepWords words = {.step = 1ULL << 40, .flags = flags};
      ExecContext ref;
      ref.words = &words;
      std::vector<std::byte> expected(70, std::byte{0x11});
      kernels::ref::write_header(ref, header, 4000, expected);
      CudaStep step;
      step.set_words(words);
      OnDevice<std::byte> const payload(step, std::vector<std::byte>(70, std::byte{0x11}), offset);
      OnDevice<std::uint64_t> const length(step, std::vector<std::uint64_t>{4000});

      kernels::cuda::write_header(step.context(), header,
                                  StepValue<std::uint64_t>::in_word(length.data()), payload.span());

      ASSERT_TRUE(went_well(step));
      ASSERT_TRUE(same_bytes(expected, payload.read()));
      auto const written = wire::load<PayloadHeader>(expected.data());
      bool const is_corrupt = (flags & kStepCorrupt) != 0;
      EXPECT_EQ(written.step, words.step);
      EXPECT_EQ(written.flags, kFlagOverflow | (flags & kStepNonFinite));
      EXPECT_EQ(written.body_bytes, is_corrupt ? 0U : 4000U);
      EXPECT_EQ(static_cast<Code>(written.status), is_corrupt ? Code::corrupt_payload : Code::ok);
    }
  }
}

}  // namespace
}  // namespace gradsieve::testing
