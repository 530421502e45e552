// SPDX-License-Identifier: Apache-2.0
#include "compressors/sparse_batch.hpp"

#include <utility>

namespace gradsieve {
namespace {

class SparseBatch final : public Batch {
 public:
  SparseBatch(ExecContext const& ctx, SparseBatchPlan plan, MemoryResource& memory)
      : rule_(plan.rule),
        values_codec_(std::move(plan.values)),
        segments_(uploaded(plan.segments, memory, ctx.stream)),
        indices_(static_cast<std::size_t>(plan.num_indices) * sizeof(std::uint32_t), memory,
                 ctx.stream) {
    if (values_codec_ == nullptr) return;
    std::size_t const num_bytes = static_cast<std::size_t>(plan.num_values) * sizeof(float);
    values_ = Buffer(num_bytes, memory, ctx.stream);
    lost_ = Buffer(num_bytes, memory, ctx.stream);
  }

  Status encode(ExecContext const& ctx, ConstTensorView gradient, ResidualView residual,
                Bytes bodies) const noexcept override {
    kernels::EncodedArrays const arrays = {
        .gradient = gradient,
        .residual_in = residual.in.empty() ? nullptr : residual.in.data(),
        .residual_out = residual.out.data(),
        .carry = residual.carry,
        .bodies = bodies.data()};
    auto* const indices = indices_.as<std::uint32_t>().data();
    kernels::ChosenArrays const chosen = {indices, values_codec_ == nullptr
                                                       ? reinterpret_cast<float*>(bodies.data())
                                                       : values_.as<float>().data()};
    raise_flags(ctx, kernels::select_many(ctx, segments(), rule_, arrays, chosen));
    if (values_codec_ == nullptr) return {};
    std::span<float> const lost = lost_.as<float>();
    GRADSIEVE_RETURN_IF_ERROR(
        values_codec_->encode_corrected(ctx, values_.as<float>(), lost, bodies));
    kernels::put_back_many(ctx, segments(), indices, lost.data(), residual.out.data());
    return {};
  }

  Status decode_add(ExecContext const& ctx, ConstBytes bodies, double weight,
                    std::span<float> accumulator, Sums sums, bool) const noexcept override {
    auto const* values = reinterpret_cast<float const*>(bodies.data());
    if (values_codec_ != nullptr) {
      std::span<float> const decoded = values_.as<float>();
      GRADSIEVE_RETURN_IF_ERROR(
          values_codec_->decode_add(ctx, bodies, 1.0, decoded, Sums::as_gradient, true));
      values = decoded.data();
    }
    kernels::DecodedArrays const arrays = {.bodies = bodies.data(),
                                           .accumulator = accumulator.data(),
                                           .lies_as_residual = sums == Sums::as_residual,
                                           .weight = static_cast<float>(weight)};
    bool const is_well = kernels::sparse_add_many(ctx, segments(), arrays, values);
    return is_well ? Status{} : Status{Code::corrupt_payload, "a sparse body is not one"};
  }

  [[nodiscard]] bool needs_zeros() const noexcept override { return true; }

 private:
  [[nodiscard]] std::span<kernels::SparseSegment const> segments() const noexcept {
    return segments_.as<kernels::SparseSegment const>();
  }

  kernels::HeldRule rule_;
  std::shared_ptr<Batch const> values_codec_;
  Buffer segments_;
  // What lies in these between two launches of one call: calls follow each other on a stream.
  Buffer indices_;
  Buffer values_;
  Buffer lost_;
};

}  // namespace

std::shared_ptr<Batch const> make_sparse_batch(ExecContext const& ctx, SparseBatchPlan plan,
                                               MemoryResource& memory) {
  return std::make_shared<SparseBatch>(ctx, std::move(plan), memory);
}

}  // namespace gradsieve
