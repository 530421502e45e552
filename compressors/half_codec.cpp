// SPDX-License-Identifier: Apache-2.0
#include "compressors/half_codec.hpp"

#include "compressors/batches.hpp"
#include "compressors/body_fields.hpp"
#include "compressors/cached_parts.hpp"

namespace gradsieve {

RoundInfo HalfCodec::round(int, TensorInfo const& piece) const noexcept {
  return {.exchange = ExchangeKind::shard_sum,
          .capacity_bytes = static_cast<std::size_t>(piece.num_elements) * size_of(dtype_)};
}

std::shared_ptr<Batch const> HalfCodec::make_batch(ExecContext const& ctx,
                                                   std::span<BatchPiece const> pieces,
                                                   MemoryResource& memory) const {
  return make_value_batch(ctx, pieces, dtype_, rounding_, memory);
}

void HalfCodec::write(ExecContext const& ctx, TensorInfo const& piece, std::uint64_t begin,
                      std::span<float const> corrected, TensorView out) const noexcept {
  if (rounding_ == kernels::Rounding::nearest) {
    kernels::narrow(ctx, corrected, /*saturate=*/true, out);
    return;
  }
  RoundingKey key = rounding_key(ctx, piece);
  key.first_element += begin;
  kernels::store_bf16(ctx, corrected, key, out.as<BFloat16>());
}

Status HalfCodec::do_encode(ExecContext const& ctx, int, TensorInfo const& piece,
                            std::span<float const> corrected, StateView, Body body) const noexcept {
  Bytes const out = body.resize(corrected.size() * size_of(dtype_));
  if (out.empty()) return kBodyTooSmall;
  write(ctx, piece, 0, corrected, {out.data(), corrected.size(), dtype_});
  return {};
}

Status HalfCodec::do_encode_with_residual(ExecContext const& ctx, int, TensorInfo const& piece,
                                          ConstTensorView gradient, ResidualView residual,
                                          StateView, Body body) const noexcept {
  std::uint64_t const n = gradient.num_elements;
  Bytes const out = body.resize(static_cast<std::size_t>(n) * size_of(dtype_));
  if (out.empty()) return kBodyTooSmall;
  WorkspaceScope const scope(*ctx.workspace);
  std::span<float> const decoded = ctx.workspace->take<float>(static_cast<std::size_t>(n));
  if (decoded.empty()) return kWorkspaceTooSmall;
  TensorView const halves(out.data(), n, dtype_);
  for_cached_parts(ctx, n, 8, [&](std::uint64_t begin, std::uint64_t count) {
    ResidualView const part = part_of(residual, begin, count);
    raise_flags(ctx, kernels::compensate(ctx, gradient.slice(begin, count), part));
    write(ctx, piece, begin, part.out, halves.slice(begin, count));
    std::span<float> const sent = decoded.first(part.out.size());
    kernels::clear(ctx, std::as_writable_bytes(sent));
    kernels::add_scaled(ctx, halves.slice(begin, count), 1.0F, sent);
    kernels::retain(ctx, sent, part.out);
  });
  return {};
}

Status HalfCodec::do_decode_add(ExecContext const& ctx, int, TensorInfo const&, ConstBytes body,
                                float weight, StateView,
                                std::span<float> accumulator) const noexcept {
  if (body.size() != accumulator.size() * size_of(dtype_)) {
    return {Code::corrupt_payload, "the body does not hold two bytes for each element"};
  }
  kernels::add_scaled(ctx, {body.data(), accumulator.size(), dtype_}, weight, accumulator);
  return {};
}

}  // namespace gradsieve
