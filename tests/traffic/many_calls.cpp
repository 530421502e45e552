// SPDX-License-Identifier: Apache-2.0
// The same elements as the tensors of a model, in one launch.
#include "kernels/many_ops.hpp"
#include "tests/traffic/traffic_calls.hpp"

namespace gradsieve::testing {
namespace {

using kernels::Rounding;
using kernels::Segment;

constexpr std::size_t kCount = kTrafficElements;
constexpr std::size_t kTensors = 100;
constexpr std::uint64_t kBlock = 256;

/// Tensors of other sizes in a row, each at a quad: bodies of `bits` an element, behind which stand
/// the scales if there are blocks.
class Model {
 public:
  Model(CudaStep& step, Shape shape, unsigned bits, std::uint64_t block_elements)
      : segments_(lay(bits, block_elements)),
        runs_(kernels::plan_runs(segments_, block_elements)),
        device_segments_(step, segments_),
        device_runs_(step, runs_),
        gradient_(step, make_gradient(shape, kCount, 1)),
        residual_(step, make_gradient(shape, kCount, 2)),
        bodies_(step, std::vector<std::byte>(body_bytes_)) {}

  [[nodiscard]] kernels::SegmentTable table() const {
    return {device_segments_.span(), device_runs_.span()};
  }
  [[nodiscard]] kernels::EncodedArrays encoded() const {
    return {.gradient = {gradient_.data(), kCount, DType::f32, Device::cuda},
            .residual_in = residual_.data(),
            .residual_out = residual_.data(),
            .carry = 1.0F,
            .bodies = bodies_.data()};
  }
  [[nodiscard]] kernels::DecodedArrays decoded() const {
    return {bodies_.data(), residual_.data(), true, 0.5F};
  }
  [[nodiscard]] static double payload_bytes(unsigned bits, std::uint64_t block_elements) {
    double const scales = block_elements == 1 ? 0.0 : 4.0 / static_cast<double>(block_elements);
    return static_cast<double>(kCount) * (bits / 8.0 + scales);
  }

 private:
  std::vector<Segment> lay(unsigned bits, std::uint64_t block_elements) {
    std::vector<Segment> segments;
    std::uint64_t first = 0;
    for (std::size_t i = 0; first < kCount; ++i) {
      bool const is_last = i + 1 == kTensors;
      std::uint64_t const count = is_last ? kCount - first : 256 * (1 + i * 37 % 64);
      // Two bits: bodies of `sign`, whose header comes first.
      std::uint64_t const header = bits == 2 ? kernels::kSignHeader.size() : 0;
      std::uint64_t const scales_begin = body_bytes_ + header + count * bits / 8;
      segments.push_back({.in_gradient = first,
                          .in_residual = first,
                          .codes_begin = body_bytes_,
                          .scales_begin = scales_begin,
                          .num_elements = count,
                          .key = {static_cast<std::uint32_t>(i), 3}});
      first += count;
      body_bytes_ = scales_begin + (block_elements == 1 ? 0 : count / block_elements * 4);
      body_bytes_ = (body_bytes_ + 15) / 16 * 16;
    }
    return segments;
  }

  std::size_t body_bytes_ = 0;
  std::vector<Segment> segments_;
  std::vector<std::uint32_t> runs_;
  OnDevice<Segment> device_segments_;
  OnDevice<std::uint32_t> device_runs_;
  OnDevice<float> gradient_;
  OnDevice<float> residual_;
  OnDevice<std::byte> bodies_;
};

void add(std::vector<TrafficCall>& calls, std::string const& name, std::string const& kind,
         unsigned bits, std::uint64_t block_elements,
         std::function<void(CudaStep&, Model const&)> run) {
  calls.push_back({.name = name + ", " + std::to_string(kTensors) + " tensors",
                   .kind = kind,
                   .payload_bytes = Model::payload_bytes(bits, block_elements),
                   .shapes = {"heavy_tailed"},
                   .run = [=](CudaStep& step, Shape shape) {
                     run(step, Model(step, shape, bits, block_elements));
                   }});
}

}  // namespace

void add_many_calls(std::vector<TrafficCall>& calls) {
  for (DType const type : {DType::f32, DType::bf16}) {
    auto const bits = static_cast<unsigned>(8 * size_of(type));
    std::string const name(dtype_name(type));
    add(calls, "encode_values_many " + name, "streaming", bits, 1,
        [=](CudaStep& step, Model const& model) {
          kernels::cuda::encode_values_many(step.context(), model.table(), model.encoded(), type,
                                            Rounding::nearest, 3);
        });
    add(calls, "add_values_many " + name, "streaming", bits, 1,
        [=](CudaStep& step, Model const& model) {
          kernels::cuda::add_values_many(step.context(), model.table(), model.decoded(), type);
        });
  }
  for (int const bits : {8, 4}) {
    std::string const text = std::to_string(bits) + " bits, block " + std::to_string(kBlock);
    add(calls, "quantize_many " + text, "quantizer", static_cast<unsigned>(bits), kBlock,
        [=](CudaStep& step, Model const& model) {
          kernels::cuda::quantize_many(step.context(), model.table(), model.encoded(), bits, kBlock,
                                       Rounding::nearest, 3);
        });
    add(calls, "dequantize_add_many " + text, "dequantize", static_cast<unsigned>(bits), kBlock,
        [=](CudaStep& step, Model const& model) {
          kernels::cuda::dequantize_add_many(step.context(), model.table(), model.decoded(), bits,
                                             kBlock);
        });
  }
  // Bodies with a header and two planes: the tensors have whole blocks, so nothing else is between.
  constexpr std::uint64_t kSignBlock = 256;
  add(calls, "sign_many, block 256", "streaming", 2, kSignBlock,
      [](CudaStep& step, Model const& model) {
        kernels::cuda::sign_many(step.context(), model.table(), model.encoded(), kSignBlock);
      });
  add(calls, "sign_add_many, block 256", "dequantize", 2, kSignBlock,
      [](CudaStep& step, Model const& model) {
        kernels::cuda::sign_add_many(step.context(), model.table(), model.decoded(), kSignBlock);
      });
}

}  // namespace gradsieve::testing
