// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/many_ops.hpp"
#include "tests/equivalence/cuda/cuda_cases.hpp"

namespace gradsieve::testing {
namespace {

using kernels::Rounding;
using kernels::Segment;

/// Where the residual that is read lies.
enum class Feedback { none, apart, in_place };

/// A model of small tensors in arrays with gaps, some of them empty, some of several runs: in host
/// memory for ref and, with the same places, in device memory for cuda.
class ManyTensors {
 public:
  static constexpr std::size_t kCounts[] = {5, 0, 4096, 1, 9001, 128, 3, 4097, 1000, 64};

  /// Blocks of codes of `bits` bits and scales behind them; block 0: values of `bits` bits, none.
  /// 1 bit: bodies of `sign`.
  ManyTensors(CudaStep& step, DType dtype, int bits, std::uint64_t block_elements,
              Feedback feedback = Feedback::apart)
      : feedback_(feedback),
        dtype_(dtype),
        segments_(lay(bits, block_elements)),
        segment_of_run_(kernels::plan_runs(segments_, std::max<std::uint64_t>(block_elements, 1))),
        gradient_(make_gradients()),
        in_(make_gradient(Shape::heavy_tailed, num_residuals_, 7)),
        out_(feedback == Feedback::in_place ? in_ : std::vector<float>(num_residuals_, 3)),
        sums_(make_gradient(Shape::gaussian, std::max(num_residuals_, num_gradients_), 8)),
        device_segments_(step, segments_),
        device_runs_(step, segment_of_run_),
        device_gradient_(step, gradient_),
        device_in_(step, in_),
        device_out_(step, out_),
        device_sums_(step, sums_),
        device_bodies_(step, bodies_) {}

  [[nodiscard]] kernels::SegmentTable host() const { return {segments_, segment_of_run_}; }
  [[nodiscard]] kernels::SegmentTable device() const {
    return {device_segments_.span(), device_runs_.span()};
  }
  [[nodiscard]] std::vector<Segment> const& segments() const { return segments_; }
  [[nodiscard]] std::vector<std::byte>& bodies() { return bodies_; }

  [[nodiscard]] kernels::EncodedArrays encoded(StepValue<float> carry) {
    return {.gradient = {gradient_.data(), num_gradients_, dtype_},
            .residual_in = in_or_null(in_.data(), out_.data()),
            .residual_out = out_.data(),
            .carry = carry,
            .bodies = bodies_.data()};
  }
  [[nodiscard]] kernels::EncodedArrays encoded_on_device(StepValue<float> carry) const {
    return {.gradient = {device_gradient_.data(), num_gradients_, dtype_, Device::cuda},
            .residual_in = in_or_null(device_in_.data(), device_out_.data()),
            .residual_out = device_out_.data(),
            .carry = carry,
            .bodies = device_bodies_.data()};
  }
  [[nodiscard]] kernels::DecodedArrays decoded(bool as_residual, bool is_first = false) {
    return {bodies_.data(), sums_.data(), as_residual, 0.3F, is_first};
  }
  [[nodiscard]] kernels::DecodedArrays decoded_on_device(bool as_residual,
                                                         bool is_first = false) const {
    return {device_bodies_.data(), device_sums_.data(), as_residual, 0.3F, is_first};
  }

  /// Gaps included.
  void expect_same() const {
    ASSERT_TRUE(same_bytes(out_, device_out_.read()));
    ASSERT_TRUE(same_bytes(sums_, device_sums_.read()));
    ASSERT_TRUE(same_bytes(bodies_, device_bodies_.read()));
    ASSERT_TRUE(device_out_.intact() && device_sums_.intact() && device_bodies_.intact());
  }

 private:
  std::vector<Segment> lay(int bits, std::uint64_t block_elements) {
    std::vector<Segment> segments;
    std::size_t body = 0;
    for (std::size_t const n : kCounts) {
      std::uint64_t const draw = mix64(n + segments.size());
      std::size_t const code_bytes = bits == 1 ? kernels::kSignHeader.size() + 2 * ((n + 7) / 8)
                                               : (n * static_cast<unsigned>(bits) + 7) / 8;
      std::size_t const scales = body + (code_bytes + 3) / 4 * 4;
      std::size_t const num_scales =
          block_elements == 0 ? 0
                              : static_cast<std::size_t>((n + block_elements - 1) / block_elements);
      // Every third lies where quads do.
      bool const is_odd = draw % 3 != 0;
      num_gradients_ = (num_gradients_ + 3) / 4 * 4 + (is_odd ? draw >> 8 & 7 : 0);
      num_residuals_ = (num_residuals_ + 3) / 4 * 4 + (is_odd ? draw >> 16 & 7 : 0);
      segments.push_back({.in_gradient = num_gradients_,
                          .in_residual = num_residuals_,
                          .codes_begin = body,
                          .scales_begin = scales,
                          .num_elements = n,
                          .key = {static_cast<std::uint32_t>(draw), 5},
                          .first_element = draw >> 20 & 63});
      num_gradients_ += n;
      num_residuals_ += n;
      body = scales + num_scales * sizeof(float) + (draw >> 24 & 3) * 4;
    }
    bodies_.assign(body, std::byte{0});
    return segments;
  }
  std::vector<std::byte> make_gradients() const {
    std::vector<float> all(num_gradients_, 9.0F);
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      Shape const shape = kAllShapes[mix64(i) % kAllShapes.size()];
      std::ranges::copy(
          make_gradient(shape, static_cast<std::size_t>(segments_[i].num_elements), i),
          all.begin() + static_cast<std::ptrdiff_t>(segments_[i].in_gradient));
    }
    return stored_as(dtype_, all);
  }
  template <typename T>
  [[nodiscard]] T const* in_or_null(T const* apart, T const* in_place) const {
    return feedback_ == Feedback::none ? nullptr : feedback_ == Feedback::apart ? apart : in_place;
  }

  Feedback feedback_;
  DType dtype_;
  std::size_t num_gradients_ = 0;
  std::size_t num_residuals_ = 0;
  std::vector<std::byte> bodies_;
  std::vector<Segment> segments_;
  std::vector<std::uint32_t> segment_of_run_;
  std::vector<std::byte> gradient_;
  std::vector<float> in_;
  std::vector<float> out_;
  std::vector<float> sums_;
  OnDevice<Segment> device_segments_;
  OnDevice<std::uint32_t> device_runs_;
  OnDevice<std::byte> device_gradient_;
  OnDevice<float> device_in_;
  OnDevice<float> device_out_;
  OnDevice<float> device_sums_;
  OnDevice<std::byte> device_bodies_;
};

TEST(CudaEncodeValuesMany, IsEquivalentToRef) {
  for (DType const dtype : kGradientTypes) {
    for (DType const type : kGradientTypes) {
      for (Feedback const feedback : {Feedback::none, Feedback::apart, Feedback::in_place}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " as " + std::string(dtype_name(type)) +
                     ", feedback " + std::to_string(static_cast<int>(feedback)));
        if (is_quick_subset() && (dtype == DType::f16 || feedback == Feedback::apart)) continue;
        bool const is_stochastic = type == DType::bf16 && feedback != Feedback::none;
        Rounding const rounding = is_stochastic ? Rounding::stochastic : Rounding::nearest;
        CudaStep step;
        int const bits = static_cast<int>(8 * size_of(type));
        ManyTensors tensors(step, dtype, bits, 0, feedback);
        OnDevice<float> const carry(step, std::vector<float>{0.7F});
        step.set_words({.step = 9});
        auto const flags = kernels::ref::encode_values_many(
            {}, tensors.host(), tensors.encoded(0.7F), type, rounding, 9);

        auto const returned = kernels::cuda::encode_values_many(
            step.context(), tensors.device(),
            tensors.encoded_on_device(StepValue<float>::in_word(carry.data())), type, rounding,
            StepValue<std::uint64_t>::in_word(&step.words()->step));

        ASSERT_TRUE(went_well(step));
        ASSERT_EQ(returned, 0U);
        ASSERT_EQ(step.read_words().flags, flags);
        tensors.expect_same();
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(CudaAddValuesMany, IsEquivalentToRef) {
  for (DType const type : kGradientTypes) {
    for (bool const as_residual : {false, true}) {
      SCOPED_TRACE(std::string(dtype_name(type)) + (as_residual ? ", as residual" : ""));
      CudaStep step;
      ManyTensors tensors(step, DType::f32, static_cast<int>(8 * size_of(type)), 0);
      kernels::ref::encode_values_many({}, tensors.host(), tensors.encoded(0.7F), type,
                                       Rounding::nearest, 9);
      kernels::cuda::encode_values_many(step.context(), tensors.device(),
                                        tensors.encoded_on_device(0.7F), type, Rounding::nearest,
                                        9);

      for (bool const is_first : {false, true}) {
        kernels::ref::add_values_many({}, tensors.host(), tensors.decoded(as_residual, is_first),
                                      type);
        kernels::cuda::add_values_many(step.context(), tensors.device(),
                                       tensors.decoded_on_device(as_residual, is_first), type);

        ASSERT_TRUE(went_well(step));
        tensors.expect_same();
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(CudaQuantizeMany, IsEquivalentToRef) {
  for (DType const dtype : kGradientTypes) {
    for (int const bits : {8, 4}) {
      for (std::uint64_t const block_elements : {1U, 3U, 64U, 256U, 1024U, 3000U, 5001U}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + ", " + std::to_string(bits) +
                     " bits, block " + std::to_string(block_elements));
        if (is_quick_subset() && (block_elements != 256 || dtype == DType::f16)) continue;
        std::uint64_t const draw = block_elements + static_cast<unsigned>(bits);
        Rounding const rounding = draw % 2 == 0 ? Rounding::nearest : Rounding::stochastic;
        CudaStep step;
        ManyTensors tensors(step, dtype, bits, block_elements, static_cast<Feedback>(draw % 3));
        step.set_words({.step = 9});
        auto const flags = kernels::ref::quantize_many({}, tensors.host(), tensors.encoded(1.0F),
                                                       bits, block_elements, rounding, 9);

        kernels::cuda::quantize_many(
            step.context(), tensors.device(), tensors.encoded_on_device(1.0F), bits, block_elements,
            rounding, StepValue<std::uint64_t>::in_word(&step.words()->step));

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
      bool const as_residual = block_elements % 2 == 0;
      CudaStep step;
      ManyTensors tensors(step, DType::f32, bits, block_elements);
      kernels::ref::quantize_many({}, tensors.host(), tensors.encoded(1.0F), bits, block_elements,
                                  Rounding::nearest, 9);
      kernels::cuda::quantize_many(step.context(), tensors.device(),
                                   tensors.encoded_on_device(1.0F), bits, block_elements,
                                   Rounding::nearest, 9);
      step.set_words({});

      for (bool const is_first : {false, true}) {
        ASSERT_TRUE(kernels::ref::dequantize_add_many(
            {}, tensors.host(), tensors.decoded(as_residual, is_first), bits, block_elements));
        kernels::cuda::dequantize_add_many(step.context(), tensors.device(),
                                           tensors.decoded_on_device(as_residual, is_first), bits,
                                           block_elements);

        ASSERT_TRUE(went_well(step));
        ASSERT_EQ(step.read_words().flags, 0U);
        tensors.expect_same();
        if (HasFatalFailure()) return;
      }
    }
  }
}

// A scale that is none, a bit between codes and scales, the half of a byte that no code takes: in
// the first tensor and in the last run of a long one.
TEST(CudaDequantizeAddMany, FindsWhatRefRefuses) {
  constexpr std::uint64_t kBlock = 256;
  struct Damage {
    std::size_t segment;
    bool in_scale;
    std::size_t offset;  ///< bytes from the last scale, or from the end of the codes
    std::byte bits;
  };
  for (Damage const& d :
       std::vector<Damage>{{0, true, 3, std::byte{0x80}},
                           {4, true, 3, std::byte{0x7f}},
                           {4, false, 0, std::byte{0x01}},
                           {0, false, 0, std::byte{0x80}},
                           {0, false, static_cast<std::size_t>(-1), std::byte{0x10}}}) {
    CudaStep step;
    ManyTensors tensors(step, DType::f32, 4, kBlock);
    Segment const& segment = tensors.segments()[d.segment];
    std::size_t const num_scales = (segment.num_elements + kBlock - 1) / kBlock;
    std::size_t const codes_end = segment.codes_begin + (segment.num_elements + 1) / 2;
    std::size_t const at =
        (d.in_scale ? segment.scales_begin + 4 * (num_scales - 1) : codes_end) + d.offset;
    std::vector<std::byte> bodies = tensors.bodies();
    bodies[at] |= d.bits;
    if (d.in_scale) bodies[at - 1] |= std::byte{0x80};
    OnDevice<std::byte> const damaged(step, bodies);
    auto host = tensors.decoded(false);
    auto device = tensors.decoded_on_device(false);
    host.bodies = bodies.data();
    device.bodies = damaged.data();

    EXPECT_FALSE(kernels::ref::dequantize_add_many({}, tensors.host(), host, 4, kBlock)) << at;
    kernels::cuda::dequantize_add_many(step.context(), tensors.device(), device, 4, kBlock);

    ASSERT_TRUE(went_well(step));
    EXPECT_EQ(step.read_words().flags, kStepCorrupt) << at;
  }
}

TEST(CudaSignMany, IsEquivalentToRef) {
  for (DType const dtype : kGradientTypes) {
    for (std::uint64_t const block_elements : {8U, 24U, 256U, 1024U, 4096U, 4104U, 8192U}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + ", block " + std::to_string(block_elements));
      if (is_quick_subset() && (block_elements != 256 || dtype != DType::bf16)) continue;
      std::uint64_t const draw = mix64(block_elements + static_cast<unsigned>(dtype));
      CudaStep step;
      ManyTensors tensors(step, dtype, 1, block_elements, static_cast<Feedback>(draw % 3));
      auto const flags =
          kernels::ref::sign_many({}, tensors.host(), tensors.encoded(0.9F), block_elements);

      kernels::cuda::sign_many(step.context(), tensors.device(), tensors.encoded_on_device(0.9F),
                               block_elements);

      ASSERT_TRUE(went_well(step));
      ASSERT_EQ(step.read_words().flags, flags);
      tensors.expect_same();
      if (HasFatalFailure()) return;
      step.set_words({});
      for (bool const is_first : {false, true}) {
        bool const as_residual = draw % 2 == 0;
        ASSERT_TRUE(kernels::ref::sign_add_many(
            {}, tensors.host(), tensors.decoded(as_residual, is_first), block_elements));
        kernels::cuda::sign_add_many(step.context(), tensors.device(),
                                     tensors.decoded_on_device(as_residual, is_first),
                                     block_elements);

        ASSERT_TRUE(went_well(step));
        ASSERT_EQ(step.read_words().flags, 0U);
        tensors.expect_same();
        if (HasFatalFailure()) return;
      }
    }
  }
}

// A byte of the header, an element that is negative and zero, bits behind a plane, padding, a
// scale.
TEST(CudaSignAddMany, FindsWhatRefRefuses) {
  constexpr std::uint64_t kBlock = 64;
  CudaStep step;
  ManyTensors tensors(step, DType::f32, 1, kBlock);
  kernels::ref::sign_many({}, tensors.host(), tensors.encoded(1.0F), kBlock);
  std::vector<std::byte> const sound = tensors.bodies();
  for (std::size_t const number : {0, 4}) {  // of 5 and of 9001 elements
    Segment const& segment = tensors.segments()[number];
    auto const n = static_cast<std::size_t>(segment.num_elements);
    std::size_t const body = static_cast<std::size_t>(segment.codes_begin);
    std::size_t const plane = (n + 7) / 8;
    std::size_t const scales = static_cast<std::size_t>(segment.scales_begin);
    struct Damage {
      std::size_t at;
      std::byte bits;
    };
    for (Damage const& d : std::vector<Damage>{{body, std::byte{2}},
                                               {body + 3, std::byte{1}},
                                               {body + 4 + plane - 1, std::byte{0x80}},
                                               {body + 4 + 2 * plane - 1, std::byte{0x80}},
                                               {body + 4, std::byte{0xff}},
                                               {body + 4 + n / 16, std::byte{0xff}},
                                               {scales - 1, std::byte{1}},
                                               {scales + 3, std::byte{0x80}}}) {
      bool const is_no_padding = d.at + 1 == scales && scales == body + 4 + 2 * plane;
      if (is_no_padding) continue;
      std::vector<std::byte> bodies = sound;
      bodies[d.at] |= d.bits;
      if (d.bits == std::byte{0xff}) bodies[d.at + plane] |= d.bits;
      OnDevice<std::byte> const damaged(step, bodies);
      auto host = tensors.decoded(false);
      auto device = tensors.decoded_on_device(false);
      host.bodies = bodies.data();
      device.bodies = damaged.data();
      step.set_words({});

      bool const is_well = kernels::ref::sign_add_many({}, tensors.host(), host, kBlock);
      kernels::cuda::sign_add_many(step.context(), tensors.device(), device, kBlock);

      ASSERT_TRUE(went_well(step));
      EXPECT_EQ(step.read_words().flags, is_well ? 0U : kStepCorrupt) << d.at;
      EXPECT_FALSE(is_well) << d.at;
    }
  }
}

// What a chain has chosen is c: it is not compensated, and a −0 stays one.
TEST(CudaMany, CodesWhatIsCorrected) {
  enum class Codec { f32, bf16, int8, sign };
  for (Codec const codec : {Codec::f32, Codec::bf16, Codec::int8, Codec::sign}) {
    CudaStep step;
    int const bits = codec == Codec::f32    ? 32
                     : codec == Codec::bf16 ? 16
                     : codec == Codec::int8 ? 8
                                            : 1;
    std::uint64_t const block = codec == Codec::f32 || codec == Codec::bf16 ? 0 : 64;
    ManyTensors tensors(step, DType::f32, bits, block);
    std::vector<float> c = make_gradient(Shape::gaussian, 40000, 4);
    for (std::size_t i = 0; i < c.size(); i += 3) c[i] = -0.0F;
    OnDevice<float> const device_c(step, c);
    kernels::EncodedArrays host = tensors.encoded(1.0F);
    kernels::EncodedArrays device = tensors.encoded_on_device(1.0F);
    ASSERT_LE(host.gradient.num_elements, c.size());
    host.gradient = ConstTensorView(std::span<float const>(c));
    device.gradient = {device_c.data(), c.size(), DType::f32, Device::cuda};
    host.residual_in = device.residual_in = nullptr;
    host.is_corrected = device.is_corrected = true;
    step.set_words({});
    auto const run = [&](auto& values, auto& quantize, auto& sign, ExecContext const& ctx,
                         kernels::SegmentTable const& table, kernels::EncodedArrays const& arrays) {
      if (codec == Codec::sign) {
        sign(ctx, table, arrays, block);
      } else if (codec == Codec::int8) {
        quantize(ctx, table, arrays, 8, block, Rounding::nearest, 9);
      } else {
        values(ctx, table, arrays, codec == Codec::f32 ? DType::f32 : DType::bf16,
               Rounding::nearest, 9);
      }
    };

    run(kernels::ref::encode_values_many, kernels::ref::quantize_many, kernels::ref::sign_many, {},
        tensors.host(), host);
    run(kernels::cuda::encode_values_many, kernels::cuda::quantize_many, kernels::cuda::sign_many,
        step.context(), tensors.device(), device);

    ASSERT_TRUE(went_well(step));
    EXPECT_EQ(step.read_words().flags, 0U);
    tensors.expect_same();
    if (HasFatalFailure()) return;
    if (codec != Codec::f32) continue;
    auto const first = wire::load<float>(tensors.bodies().data());
    EXPECT_EQ(std::bit_cast<std::uint32_t>(first),
              std::bit_cast<std::uint32_t>(
                  c[static_cast<std::size_t>(tensors.segments()[0].in_gradient)]));
  }
}

TEST(CudaMany, ADecodeMayBeLeftOut) {
  for (std::uint32_t const word : {0U, 1U}) {
    CudaStep step;
    ManyTensors tensors(step, DType::f32, 32, 0);
    std::vector<std::byte> ones = tensors.bodies();
    for (std::size_t i = 0; i + 4 <= ones.size(); i += 4) wire::store(ones.data() + i, 1.0F);
    OnDevice<std::byte> const bodies(step, ones);
    OnDevice<std::uint32_t> const only_if(step, std::vector<std::uint32_t>{word});
    ExecContext ctx = step.context();
    ctx.only_if = only_if.data();
    auto device = tensors.decoded_on_device(false);
    auto host = tensors.decoded(false);
    device.bodies = bodies.data();
    host.bodies = ones.data();

    kernels::cuda::add_values_many(ctx, tensors.device(), device, DType::f32);
    if (word != 0) kernels::ref::add_values_many({}, tensors.host(), host, DType::f32);

    ASSERT_TRUE(went_well(step));
    tensors.expect_same();
  }
}

TEST(CudaMany, TakesNoTensors) {
  CudaStep step;
  EXPECT_EQ(
      kernels::cuda::encode_values_many(step.context(), {}, {}, DType::f32, Rounding::nearest, 0),
      0U);
  EXPECT_TRUE(kernels::cuda::dequantize_add_many(step.context(), {}, {}, 8, 256));
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
