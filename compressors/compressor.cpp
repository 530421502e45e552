// SPDX-License-Identifier: Apache-2.0
// What every compressor shares: the checks around each call, and the three-pass form of error
// feedback that is the definition of the fused ones.
#include "gradsieve/compressor.hpp"

#include <cstdint>

#include "kernels/ops.hpp"

namespace gradsieve {
namespace {

Status check_call(Compressor const& compressor, ExecContext const& ctx, int round,
                  TensorInfo const& piece) noexcept {
  if (ctx.workspace == nullptr || ctx.words == nullptr) {
    return {Code::invalid_argument, "the context has no workspace or no step words"};
  }
  if (round < 0 || round >= compressor.num_rounds()) {
    return {Code::invalid_argument, "the compressor has no round of this number"};
  }
  if (piece.num_elements > kMaxPieceElements) {
    return {Code::invalid_argument, "the piece is longer than kMaxPieceElements"};
  }
  if (piece.dtype == DType::f64 && !compressor.claims().f64) {
    return {Code::unsupported, "this compressor does not take f64 gradients"};
  }
  return {};
}

/// `is_f64`: the array that is read or written holds doubles. All other pieces work in f32.
Status check_array(TensorInfo const& piece, std::uint64_t num_elements, bool is_f64) noexcept {
  if (num_elements != piece.num_elements) {
    return {Code::invalid_argument, "the array and the piece differ in num_elements"};
  }
  if (is_f64 != (piece.dtype == DType::f64)) {
    return {Code::invalid_argument, "f64 goes with f64: the array and the piece differ"};
  }
  return {};
}

/// Kernels read and write bodies as arrays of 32-bit words.
Status check_place(void const* body) noexcept {
  bool const aligned = reinterpret_cast<std::uintptr_t>(body) % sizeof(float) == 0;
  return aligned ? Status{}
                 : Status{Code::invalid_argument, "a body starts at a multiple of 4 bytes"};
}

bool has_room(Compressor const& compressor, ExecContext const& ctx, int round,
              TensorInfo const& piece, Body body) noexcept {
  if (ctx.backend == Backend::cuda)
    return body.capacity_bytes() >= compressor.fixed_bytes(round, piece);
  RoundInfo const info = compressor.round(round, piece);
  if (info.exchange != ExchangeKind::sum) return body.capacity_bytes() >= info.capacity_bytes;
  return body.capacity_bytes() >= compressor.sum_bytes(round, piece, ctx.words->step);
}

bool is_f32_or_f64(DType dtype) noexcept { return dtype == DType::f32 || dtype == DType::f64; }

/// The last word on what an encoder wrote: nothing if it failed, and never past its capacity.
Status close_body(Compressor const& compressor, ExecContext const& ctx, int round,
                  TensorInfo const& piece, Body body, Status status) noexcept {
  if (!status.ok()) {
    static_cast<void>(body.resize(0));
    return status;
  }
  RoundInfo const info = compressor.round(round, piece);
  // The step of a device is not known here; what may change with it, it lays out by capacity.
  bool const is_sum = info.exchange == ExchangeKind::sum && ctx.backend != Backend::cuda;
  if (body.num_bytes() > info.capacity_bytes ||
      (is_sum && body.num_bytes() != compressor.sum_bytes(round, piece, ctx.words->step))) {
    static_cast<void>(body.resize(0));
    return {Code::internal, "the compressor broke its promise on the body's length"};
  }
  return {};
}

}  // namespace

Status Compressor::encode(ExecContext const& ctx, int round, TensorInfo const& piece,
                          ConstTensorView corrected, StateView state, Body body) const noexcept {
  GRADSIEVE_RETURN_IF_ERROR(check_call(*this, ctx, round, piece));
  bool const is_f64 = corrected.dtype == DType::f64;
  GRADSIEVE_RETURN_IF_ERROR(check_array(piece, corrected.num_elements, is_f64));
  if (!is_f32_or_f64(corrected.dtype)) {
    return {Code::invalid_argument, "what was compensated is f32, or f64"};
  }
  GRADSIEVE_RETURN_IF_ERROR(check_place(body.data()));
  static_cast<void>(body.resize(0));
  if (piece.num_elements == 0) return {};
  Status const status = is_f64 ? do_encode_f64(ctx, piece, corrected.as<double>(), body)
                               : do_encode(ctx, round, piece, corrected.as<float>(), state, body);
  return close_body(*this, ctx, round, piece, body, status);
}

Status Compressor::encode_with_residual(ExecContext const& ctx, int round, TensorInfo const& piece,
                                        ConstTensorView gradient, ResidualView residual,
                                        StateView state, Body body) const noexcept {
  GRADSIEVE_RETURN_IF_ERROR(check_call(*this, ctx, round, piece));
  bool const is_f64 = gradient.dtype == DType::f64;
  GRADSIEVE_RETURN_IF_ERROR(check_array(piece, gradient.num_elements, is_f64));
  std::uint64_t const num_residuals = is_f64 ? 0 : piece.num_elements;
  if (residual.out.size() != num_residuals ||
      (!residual.in.empty() && residual.in.size() != num_residuals)) {
    return {Code::invalid_argument, "the residual and the piece differ in num_elements"};
  }
  GRADSIEVE_RETURN_IF_ERROR(check_place(body.data()));
  static_cast<void>(body.resize(0));
  if (piece.num_elements == 0) return {};
  if (!has_room(*this, ctx, round, piece, body)) {
    if (!is_f64 && round == 0) raise_flags(ctx, kernels::compensate(ctx, gradient, residual));
    return {Code::capacity_exceeded, "the body has less room than its round asks for"};
  }
  Status const status =
      is_f64 ? do_encode_f64(ctx, piece, gradient.as<double>(), body)
             : do_encode_with_residual(ctx, round, piece, gradient, residual, state, body);
  return close_body(*this, ctx, round, piece, body, status);
}

Status Compressor::encode_owned(ExecContext const& ctx, int round, TensorInfo const& piece,
                                std::span<float const> sum, StateView state, Body body,
                                MassSink& sink) const noexcept {
  GRADSIEVE_RETURN_IF_ERROR(check_call(*this, ctx, round, piece));
  GRADSIEVE_RETURN_IF_ERROR(check_array(piece, sum.size(), false));
  GRADSIEVE_RETURN_IF_ERROR(check_place(body.data()));
  static_cast<void>(body.resize(0));
  if (piece.num_elements == 0) return {};
  ExecContext owner = ctx;
  owner.owned = true;
  Status const status = do_encode_owned(owner, round, piece, sum, state, body, sink);
  return close_body(*this, ctx, round, piece, body, status);
}

Status Compressor::absorb(ExecContext const& ctx, int round, TensorInfo const& piece,
                          std::span<ConstBytes const> received, StateView state) const noexcept {
  GRADSIEVE_RETURN_IF_ERROR(check_call(*this, ctx, round, piece));
  RoundInfo const info = this->round(round, piece);
  std::size_t const num_bodies =
      info.exchange == ExchangeKind::sum ? 1 : static_cast<std::size_t>(ctx.world_size);
  if (received.size() != num_bodies) {
    return {Code::invalid_argument, "absorb takes one body of each rank, or the one sum"};
  }
  for (ConstBytes const body : received) {
    if (body.size() > info.capacity_bytes) {
      return {Code::corrupt_payload, "a body is longer than its round allows"};
    }
    if (piece.num_elements == 0 && !body.empty()) {
      return {Code::corrupt_payload, "a body of no elements is not empty"};
    }
    GRADSIEVE_RETURN_IF_ERROR(check_place(body.data()));
  }
  if (piece.num_elements == 0) return {};
  return do_absorb(ctx, round, piece, received, state);
}

Status Compressor::decode_add(ExecContext const& ctx, int round, TensorInfo const& piece,
                              ConstBytes body, double weight, StateView state,
                              TensorView accumulator) const noexcept {
  GRADSIEVE_RETURN_IF_ERROR(check_call(*this, ctx, round, piece));
  bool const is_f64 = accumulator.dtype == DType::f64;
  GRADSIEVE_RETURN_IF_ERROR(check_array(piece, accumulator.num_elements, is_f64));
  if (!is_f32_or_f64(accumulator.dtype)) {
    return {Code::invalid_argument, "the accumulator is f32, or f64"};
  }
  if (body.size() > this->round(round, piece).capacity_bytes) {
    return {Code::corrupt_payload, "the body is longer than its round allows"};
  }
  if (piece.num_elements == 0) {
    return body.empty() ? Status{}
                        : Status{Code::corrupt_payload, "a body of no elements is not empty"};
  }
  GRADSIEVE_RETURN_IF_ERROR(check_place(body.data()));
  if (is_f64) return do_decode_add_f64(ctx, piece, body, weight, accumulator.as<double>());
  return do_decode_add(ctx, round, piece, body, static_cast<float>(weight), state,
                       accumulator.as<float>());
}

// --- defaults ------------------------------------------------------------------------------------

Status Compressor::do_encode_f64(ExecContext const&, TensorInfo const&, std::span<double const>,
                                 Body) const noexcept {
  return {Code::unsupported, "this compressor does not take f64 gradients"};
}

Status Compressor::do_decode_add_f64(ExecContext const&, TensorInfo const&, ConstBytes, double,
                                     std::span<double>) const noexcept {
  return {Code::unsupported, "this compressor does not take f64 gradients"};
}

Status Compressor::do_encode_with_residual(ExecContext const& ctx, int round,
                                           TensorInfo const& piece, ConstTensorView gradient,
                                           ResidualView residual, StateView state,
                                           Body body) const noexcept {
  if (round == 0) raise_flags(ctx, kernels::compensate(ctx, gradient, residual));
  GRADSIEVE_RETURN_IF_ERROR(do_encode(ctx, round, piece, residual.out, state, body));
  if (round + 1 < num_rounds()) return {};

  WorkspaceScope const scope(*ctx.workspace);
  std::span<float> const decoded = ctx.workspace->take<float>(residual.out.size());
  if (decoded.size() != residual.out.size()) {
    return {Code::internal, "the workspace is smaller than planned"};
  }
  kernels::clear(ctx, std::as_writable_bytes(decoded));
  GRADSIEVE_RETURN_IF_ERROR(do_decode_add(ctx, round, piece, body.written(), 1.0F, state, decoded));
  kernels::retain(ctx, decoded, residual.out);
  return {};
}

// The same codec once more: what the sum loses in the second rounding goes to the sink instead of
// the residual.
Status Compressor::do_encode_owned(ExecContext const& ctx, int round, TensorInfo const& piece,
                                   std::span<float const> sum, StateView state, Body body,
                                   MassSink& sink) const noexcept {
  std::span<float> const undelivered = sink.undelivered(piece);
  if (undelivered.size() != sum.size()) {
    return {Code::internal, "the sink has no room for the owner's second rounding"};
  }
  ResidualView const rest{.in = {}, .out = undelivered, .carry = 1.0F};
  // Only round 0 compensates; a later one finds the sum where it expects c.
  if (round > 0) raise_flags(ctx, kernels::compensate(ctx, sum, rest));
  return do_encode_with_residual(ctx, round, piece, sum, rest, state, body);
}

}  // namespace gradsieve
