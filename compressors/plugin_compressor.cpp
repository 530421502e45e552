// SPDX-License-Identifier: Apache-2.0
#include "compressors/plugin_compressor.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "compressors/plugin_host.hpp"
#include "core/foreign_enum.hpp"

namespace gradsieve {
namespace {

constexpr std::uint32_t kMaxSlots = 16;

/// A plug-in's code, if it is one of ours.
Status status_of(gsvResult_t const& result) noexcept {
  Code const code = code_of(result, Code::internal);
  switch (code) {
    case Code::ok:
      return {};
    case Code::corrupt_payload:
      return {code, "a plug-in refuses a body"};
    case Code::capacity_exceeded:
      return {code, "a plug-in has no room for its body"};
    case Code::out_of_memory:
    case Code::unsupported:
    case Code::invalid_argument:
      return {code, "a plug-in refuses a call"};
    default:
      return {Code::internal, "a plug-in failed"};
  }
}

std::vector<gsvParamValue> values_of(std::vector<ParamInfo> const& infos, Params const& params) {
  std::vector<gsvParamValue> values;
  for (ParamInfo const& info : infos) {
    gsvParamValue value = GSV_INIT(gsvParamValue);
    value.type = static_cast<std::uint32_t>(info.type);
    value.name = info.name.c_str();
    if (info.type == ParamType::real) value.real = params.real(info.name);
    if (info.type == ParamType::integer) value.integer = params.integer(info.name);
    if (info.type == ParamType::boolean) value.boolean = params.boolean(info.name) ? 1 : 0;
    if (info.type == ParamType::choice) value.text = params.choice(info.name).c_str();
    values.push_back(value);
  }
  return values;
}

Claims claims_of(gsvCodecInfo const& info) {
  auto const claims = [&](std::uint32_t bit) { return (info.claims & bit) != 0; };
  return {.deterministic = claims(gsvClaimDeterministic),
          .lossless = claims(gsvClaimLossless),
          .fixed_rate = claims(gsvClaimFixedRate),
          .unbiased = claims(gsvClaimUnbiased),
          .shared_indices = claims(gsvClaimSharedIndices),
          .elementwise = claims(gsvClaimElementwise),
          .f64 = claims(gsvClaimF64),
          .contraction = info.contraction,
          .residual = claims(gsvClaimAggregateResidual) ? ResidualRule::aggregate
                                                        : ResidualRule::own_payload};
}

/// What a plug-in promises must be something that this host can hold it to.
void check_claims(std::string const& name, std::uint32_t claims) {
  constexpr std::uint32_t kKnown = gsvClaimDeterministic | gsvClaimLossless | gsvClaimFixedRate |
                                   gsvClaimUnbiased | gsvClaimSharedIndices | gsvClaimElementwise |
                                   gsvClaimF64 | gsvClaimAggregateResidual;
  if ((claims & gsvClaimCuda) != 0) {
    throw Error(Code::unsupported, "plug-in '" + name +
                                       "' claims cuda; version 1 of the interface gives plug-ins "
                                       "host memory only: leave the claim out");
  }
  if ((claims & ~kKnown) != 0) {
    throw Error(Code::unsupported, "plug-in '" + name +
                                       "' claims what this host does not know (bits " +
                                       std::to_string(claims & ~kKnown) + ")");
  }
}

gsvBody body_of(Body body, std::uint64_t& num_bytes) noexcept {
  return {body.data(), body.capacity_bytes(), &num_bytes};
}

/// Declares what the plug-in wrote; Compressor looks at the length once more. The length comes by
/// reference: the call that gives `result` sets it, and arguments have no order.
Status close(Body body, std::uint64_t const& num_bytes, gsvResult_t const& result) noexcept {
  GRADSIEVE_RETURN_IF_ERROR(status_of(result));
  if (num_bytes > body.capacity_bytes())
    return {Code::internal, "a plug-in wrote more than its round allows"};
  static_cast<void>(body.resize(static_cast<std::size_t>(num_bytes)));
  return {};
}

}  // namespace

/// The arguments of one call, as C has them. The workspace goes back with it.
struct PluginCompressor::Call {
  Call(PluginCompressor const& codec, ExecContext const& ctx, int round, TensorInfo const& info,
       StateView state) noexcept
      : scope(*ctx.workspace), piece(plugin::piece_of(info)) {
    std::span<std::byte> const memory =
        ctx.workspace->take<std::byte>(codec.own_workspace_bytes(piece));
    call.backend = static_cast<std::uint32_t>(ctx.backend) + 1;  // 0 stands for the default
    call.host = &plugin::host();
    call.host_data = const_cast<ExecContext*>(&ctx);
    call.stream = ctx.stream.handle;
    call.workspace = memory.data();
    call.workspace_bytes = memory.size();
    call.words = plugin::words_of(*ctx.words);
    call.round = static_cast<std::uint32_t>(round);
    call.seed = ctx.seed;
    call.rank = ctx.rank;
    call.world_size = ctx.world_size;
    call.owned = ctx.owned ? 1 : 0;
    call.num_slots =
        static_cast<std::uint32_t>(std::min<std::size_t>(state.slots.size(), kMaxSlots));
    call.slots = slots.data();
    for (std::uint32_t i = 0; i < call.num_slots; ++i) slots[i] = plugin::slot_of(state.slots[i]);
  }

  WorkspaceScope scope;
  gsvPiece piece;
  std::array<gsvSlot, kMaxSlots> slots;
  gsvCall call = GSV_INIT(gsvCall);
};

PluginCompressor::PluginCompressor(gsvPluginV1x const& table, std::vector<ParamInfo> const& infos,
                                   Params const& params)
    : table_(table) {
  std::vector<gsvParamValue> const values = values_of(infos, params);
  gsvResult_t const result = table.create(values.data(), static_cast<std::uint32_t>(values.size()),
                                          params.with_feedback ? 1 : 0, &codec_);
  Code const code = code_of(result, Code::internal);
  if (code != Code::ok)
    throw Error(code, "plug-in '" + std::string(table.name) +
                          "' refuses its parameters: " + std::string(code_name(code)));
  gsvCodecInfo info = GSV_INIT(gsvCodecInfo);
  table.describe(codec_, &info);
  try {
    check_claims(table.name, info.claims);
  } catch (...) {
    table.destroy(codec_);
    throw;
  }
  claims_ = claims_of(info);
  num_rounds_ = static_cast<int>(std::clamp(info.num_rounds, 1u, 1000u));
  block_elements_ = std::max<std::uint64_t>(info.block_elements, 1);
}

PluginCompressor::~PluginCompressor() { table_.destroy(codec_); }

RoundInfo PluginCompressor::round(int index, TensorInfo const& piece) const noexcept {
  gsvPiece const given = plugin::piece_of(piece);
  gsvRoundInfo info = GSV_INIT(gsvRoundInfo);
  table_.round_info(codec_, static_cast<std::uint32_t>(index), &given, &info);
  return {.exchange = static_cast<ExchangeKind>(std::min(info.exchange, 2u)),
          .sum_type = static_cast<SumType>(std::min(info.sum_type, 2u)),
          .capacity_bytes = static_cast<std::size_t>(info.capacity_bytes)};
}

std::vector<SlotInfo> PluginCompressor::slots(TensorInfo const& piece) const {
  if (!uses(gsvPluginUsesSlots) || table_.slots == nullptr) return {};
  gsvPiece const given = plugin::piece_of(piece);
  std::array<gsvSlotInfo, kMaxSlots> infos;
  infos.fill(GSV_INIT(gsvSlotInfo));
  std::uint32_t const count = table_.slots(codec_, &given, infos.data(), kMaxSlots);
  if (count > kMaxSlots)
    throw Error(Code::unsupported, "plug-in '" + std::string(table_.name) + "' has " +
                                       std::to_string(count) + " slots; expected at most 16");
  std::vector<SlotInfo> slots;
  for (std::uint32_t i = 0; i < count; ++i) {
    slots.push_back(
        {infos[i].name, static_cast<SlotKind>(std::min(infos[i].kind, 2u)), infos[i].num_bytes});
  }
  return slots;
}

std::size_t PluginCompressor::own_workspace_bytes(gsvPiece const& piece) const noexcept {
  if (table_.workspace_bytes == nullptr) return 0;
  return static_cast<std::size_t>(table_.workspace_bytes(codec_, &piece));
}

std::size_t PluginCompressor::workspace_bytes(TensorInfo const& piece) const noexcept {
  return Compressor::workspace_bytes(piece) +
         Workspace::padded(own_workspace_bytes(plugin::piece_of(piece)));
}

std::size_t PluginCompressor::sum_bytes(int index, TensorInfo const& piece,
                                        std::uint64_t step) const noexcept {
  if (table_.sum_bytes == nullptr) return Compressor::sum_bytes(index, piece, step);
  gsvPiece const given = plugin::piece_of(piece);
  return static_cast<std::size_t>(
      table_.sum_bytes(codec_, static_cast<std::uint32_t>(index), &given, step));
}

// --- calls ---------------------------------------------------------------------------------------

Status PluginCompressor::do_encode(ExecContext const& ctx, int round, TensorInfo const& piece,
                                   std::span<float const> corrected, StateView state,
                                   Body body) const noexcept {
  Call const call(*this, ctx, round, piece, state);
  std::uint64_t num_bytes = 0;
  gsvBody const given = body_of(body, num_bytes);
  return close(body, num_bytes,
               table_.encode(codec_, &call.call, &call.piece, corrected.data(), &given));
}

Status PluginCompressor::do_encode_f64(ExecContext const& ctx, TensorInfo const& piece,
                                       std::span<double const> gradient, Body body) const noexcept {
  Call const call(*this, ctx, 0, piece, {});
  std::uint64_t num_bytes = 0;
  gsvBody const given = body_of(body, num_bytes);
  return close(body, num_bytes,
               table_.encode(codec_, &call.call, &call.piece, gradient.data(), &given));
}

Status PluginCompressor::do_encode_with_residual(ExecContext const& ctx, int round,
                                                 TensorInfo const& piece, ConstTensorView gradient,
                                                 ResidualView residual, StateView state,
                                                 Body body) const noexcept {
  if (!uses(gsvPluginUsesFused) || table_.encode_with_residual == nullptr)
    return Compressor::do_encode_with_residual(ctx, round, piece, gradient, residual, state, body);
  Call const call(*this, ctx, round, piece, state);
  std::uint64_t num_bytes = 0;
  gsvBody const given = body_of(body, num_bytes);
  float const* const in = residual.in.empty() ? nullptr : residual.in.data();
  return close(body, num_bytes,
               table_.encode_with_residual(codec_, &call.call, &call.piece, gradient.data, in,
                                           residual.out.data(), residual.carry, &given));
}

Status PluginCompressor::do_encode_owned(ExecContext const& ctx, int round, TensorInfo const& piece,
                                         std::span<float const> sum, StateView state, Body body,
                                         MassSink& sink) const noexcept {
  if (!uses(gsvPluginUsesOwned) || table_.encode_owned == nullptr)
    return Compressor::do_encode_owned(ctx, round, piece, sum, state, body, sink);
  Call const call(*this, ctx, round, piece, state);
  std::uint64_t num_bytes = 0;
  gsvBody const given = body_of(body, num_bytes);
  gsvMassSink const target = plugin::sink_of(sink);
  return close(body, num_bytes,
               table_.encode_owned(codec_, &call.call, &call.piece, sum.data(), &given, &target));
}

Status PluginCompressor::do_absorb(ExecContext const& ctx, int round, TensorInfo const& piece,
                                   std::span<ConstBytes const> received,
                                   StateView state) const noexcept {
  if (table_.absorb == nullptr) return {};
  Call const call(*this, ctx, round, piece, state);
  gsvReceived const bodies = plugin::received_of(received);
  return status_of(table_.absorb(codec_, &call.call, &call.piece, &bodies));
}

Status PluginCompressor::do_decode_add(ExecContext const& ctx, int round, TensorInfo const& piece,
                                       ConstBytes body, float weight, StateView state,
                                       std::span<float> accumulator) const noexcept {
  Call const call(*this, ctx, round, piece, state);
  return status_of(table_.decode_add(codec_, &call.call, &call.piece, body.data(), body.size(),
                                     static_cast<double>(weight), accumulator.data()));
}

Status PluginCompressor::do_decode_add_f64(ExecContext const& ctx, TensorInfo const& piece,
                                           ConstBytes body, double weight,
                                           std::span<double> accumulator) const noexcept {
  Call const call(*this, ctx, 0, piece, {});
  return status_of(table_.decode_add(codec_, &call.call, &call.piece, body.data(), body.size(),
                                     weight, accumulator.data()));
}

}  // namespace gradsieve
