// SPDX-License-Identifier: Apache-2.0
#include "compressors/batches.hpp"

#include <utility>

#include "compressors/body_fields.hpp"

namespace gradsieve {
namespace {

StepValue<std::uint64_t> step_of(ExecContext const& ctx) noexcept {
  return StepValue<std::uint64_t>::in_word(&ctx.words->step);
}

kernels::EncodedArrays arrays_of(ConstTensorView gradient, ResidualView residual,
                                 Bytes bodies) noexcept {
  return {.gradient = gradient,
          .residual_in = residual.in.empty() ? nullptr : residual.in.data(),
          .residual_out = residual.out.data(),
          .carry = residual.carry,
          .bodies = bodies.data()};
}

kernels::EncodedArrays arrays_of(std::span<float const> corrected, std::span<float> rest,
                                 Bytes bodies) noexcept {
  return {.gradient = corrected,
          .residual_out = rest.data(),
          .bodies = bodies.data(),
          .is_corrected = true};
}

kernels::DecodedArrays arrays_of(ConstBytes bodies, double weight, std::span<float> accumulator,
                                 Batch::Sums sums, bool is_first) noexcept {
  return {.bodies = bodies.data(),
          .accumulator = accumulator.data(),
          .lies_as_residual = sums == Batch::Sums::as_residual,
          .weight = static_cast<float>(weight),
          .is_first = is_first};
}

class ValueBatch final : public Batch {
 public:
  ValueBatch(SegmentsOnDevice segments, DType type, kernels::Rounding rounding) noexcept
      : segments_(std::move(segments)), type_(type), rounding_(rounding) {}

  Status encode(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                Bytes bodies) const noexcept override {
    return run(ctx, arrays_of(gradient, residual, bodies));
  }
  Status encode_corrected(ExecContext const& ctx, std::span<float const> corrected,
                          std::span<float> rest, Bytes bodies) const noexcept override {
    return run(ctx, arrays_of(corrected, rest, bodies));
  }
  Status decode_add(ExecContext const& ctx, ConstBytes bodies, double weight,
                    std::span<float> accumulator, Sums sums,
                    bool is_first) const noexcept override {
    kernels::add_values_many(ctx, segments_.table(),
                             arrays_of(bodies, weight, accumulator, sums, is_first), type_);
    return {};
  }

 private:
  Status run(ExecContext const& ctx, kernels::EncodedArrays const& arrays) const noexcept {
    raise_flags(ctx, kernels::encode_values_many(ctx, segments_.table(), arrays, type_, rounding_,
                                                 step_of(ctx)));
    return {};
  }

  SegmentsOnDevice segments_;
  DType type_;
  kernels::Rounding rounding_;
};

class QuantizerBatch final : public Batch {
 public:
  QuantizerBatch(SegmentsOnDevice segments, int bits, std::uint64_t block_elements,
                 kernels::Rounding rounding) noexcept
      : segments_(std::move(segments)),
        bits_(bits),
        block_elements_(block_elements),
        rounding_(rounding) {}

  Status encode(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                Bytes bodies) const noexcept override {
    return run(ctx, arrays_of(gradient, residual, bodies));
  }
  Status encode_corrected(ExecContext const& ctx, std::span<float const> corrected,
                          std::span<float> rest, Bytes bodies) const noexcept override {
    return run(ctx, arrays_of(corrected, rest, bodies));
  }
  Status decode_add(ExecContext const& ctx, ConstBytes bodies, double weight,
                    std::span<float> accumulator, Sums sums,
                    bool is_first) const noexcept override {
    bool const is_well = kernels::dequantize_add_many(
        ctx, segments_.table(), arrays_of(bodies, weight, accumulator, sums, is_first), bits_,
        block_elements_);
    return is_well ? Status{} : Status{Code::corrupt_payload, "a quantized body is not one"};
  }

 private:
  Status run(ExecContext const& ctx, kernels::EncodedArrays const& arrays) const noexcept {
    raise_flags(ctx, kernels::quantize_many(ctx, segments_.table(), arrays, bits_, block_elements_,
                                            rounding_, step_of(ctx)));
    return {};
  }

  SegmentsOnDevice segments_;
  int bits_;
  std::uint64_t block_elements_;
  kernels::Rounding rounding_;
};

class SignBatch final : public Batch {
 public:
  SignBatch(SegmentsOnDevice segments, std::uint64_t block_elements) noexcept
      : segments_(std::move(segments)), block_elements_(block_elements) {}

  Status encode(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                Bytes bodies) const noexcept override {
    return run(ctx, arrays_of(gradient, residual, bodies));
  }
  Status encode_corrected(ExecContext const& ctx, std::span<float const> corrected,
                          std::span<float> rest, Bytes bodies) const noexcept override {
    return run(ctx, arrays_of(corrected, rest, bodies));
  }
  Status decode_add(ExecContext const& ctx, ConstBytes bodies, double weight,
                    std::span<float> accumulator, Sums sums,
                    bool is_first) const noexcept override {
    bool const is_well = kernels::sign_add_many(
        ctx, segments_.table(), arrays_of(bodies, weight, accumulator, sums, is_first),
        block_elements_);
    return is_well ? Status{} : Status{Code::corrupt_payload, "a sign body is not one"};
  }

 private:
  Status run(ExecContext const& ctx, kernels::EncodedArrays const& arrays) const noexcept {
    raise_flags(ctx, kernels::sign_many(ctx, segments_.table(), arrays, block_elements_));
    return {};
  }

  SegmentsOnDevice segments_;
  std::uint64_t block_elements_;
};

}  // namespace

SegmentsOnDevice::SegmentsOnDevice(ExecContext const& ctx, std::vector<kernels::Segment> segments,
                                   std::uint64_t block_elements, MemoryResource& memory) {
  std::vector<std::uint32_t> const runs = kernels::plan_runs(segments, block_elements);
  segments_ = uploaded(segments, memory, ctx.stream);
  segment_of_run_ = uploaded(runs, memory, ctx.stream);
}

std::vector<kernels::Segment> segments_of(ExecContext const& ctx,
                                          std::span<BatchPiece const> pieces) {
  std::vector<kernels::Segment> segments;
  for (BatchPiece const& piece : pieces) {
    segments.push_back({.in_gradient = piece.in_gradient,
                        .in_residual = piece.in_residual,
                        .codes_begin = piece.body_offset,
                        .num_elements = piece.info.num_elements,
                        .key = rounding_key(ctx, piece.info).key,
                        .first_element = piece.info.offset_elements});
  }
  return segments;
}

std::shared_ptr<Batch const> make_value_batch(ExecContext const& ctx,
                                              std::span<BatchPiece const> pieces, DType type,
                                              kernels::Rounding rounding, MemoryResource& memory) {
  return std::make_shared<ValueBatch>(SegmentsOnDevice(ctx, segments_of(ctx, pieces), 1, memory),
                                      type, rounding);
}

std::shared_ptr<Batch const> make_quantizer_batch(ExecContext const& ctx,
                                                  std::vector<kernels::Segment> segments, int bits,
                                                  std::uint64_t block_elements,
                                                  kernels::Rounding rounding,
                                                  MemoryResource& memory) {
  return std::make_shared<QuantizerBatch>(
      SegmentsOnDevice(ctx, std::move(segments), block_elements, memory), bits, block_elements,
      rounding);
}

std::shared_ptr<Batch const> make_sign_batch(ExecContext const& ctx,
                                             std::vector<kernels::Segment> segments,
                                             std::uint64_t block_elements, MemoryResource& memory) {
  return std::make_shared<SignBatch>(
      SegmentsOnDevice(ctx, std::move(segments), block_elements, memory), block_elements);
}

}  // namespace gradsieve
