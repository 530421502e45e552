// SPDX-License-Identifier: Apache-2.0
// Specs, what they cost, and one tensor without ranks.
#include <algorithm>

#include "bindings/c/guard.hpp"
#include "bindings/c/handles.hpp"
#include "bindings/shared/offline_codec.hpp"
#include "bindings/shared/plugin_json.hpp"
#include "bindings/shared/tensor_memory.hpp"

using namespace gradsieve;

namespace {

std::uint32_t claim_bits(Claims const& claims) {
  std::uint32_t bits = 0;
  auto const set = [&](bool holds, std::uint32_t bit) { bits |= holds ? bit : 0; };
  set(claims.deterministic, gsvClaimDeterministic);
  set(claims.lossless, gsvClaimLossless);
  set(claims.fixed_rate, gsvClaimFixedRate);
  set(claims.unbiased, gsvClaimUnbiased);
  set(claims.shared_indices, gsvClaimSharedIndices);
  set(claims.elementwise, gsvClaimElementwise);
  set(claims.f64, gsvClaimF64);
  set(claims.cuda, gsvClaimCuda);
  set(claims.residual == ResidualRule::aggregate, gsvClaimAggregateResidual);
  return bits;
}

Chain chain_of(char const* spec, gsvContext const& context) {
  return make_chain(c::required_text(spec, "spec"), *context.registry);
}

bindings::OfflineCodec codec_for(char const* spec, std::uint64_t count, gsvDtype_t const& dtype,
                                 bindings::Draws draws, gsvContext const& context) {
  draws.seed = context.seed;
  Chain chain = bindings::chain_for_size(c::required_text(spec, "spec"), count, *context.registry);
  return {std::move(chain), count, c::dtype_of(dtype), draws, context.num_threads};
}

/// A lossless chain takes a residual too: it sends all of it.
void require_feedback(Chain const& chain) {
  if (chain.feedback.enabled || chain.compressor->claims().lossless) return;
  throw Error(Code::invalid_usage,
              "a residual is given, but the spec has no feedback; expected ; feedback=residual in "
              "it");
}

void encode_into(bindings::OfflineCodec& codec, ConstTensorView gradient, std::span<float> residual,
                 Bytes payload, std::uint64_t& payload_bytes) {
  if (payload.size() >= codec.capacity_bytes()) {
    payload_bytes = codec.encode(gradient, residual, payload);
    return;
  }
  bindings::OfflineCodec::Encoded const encoded = codec.encode(gradient, residual);
  payload_bytes = encoded.num_bytes;
  if (encoded.num_bytes > payload.size()) {
    throw Error(Code::capacity_exceeded, "the payload has " + std::to_string(encoded.num_bytes) +
                                             " bytes; there is room for " +
                                             std::to_string(payload.size()));
  }
  std::memcpy(payload.data(), encoded.payload().data(), encoded.num_bytes);
}

}  // namespace

extern "C" {

gsvResult_t gsvSpecCanonical(char const* spec, char* text, uint64_t capacity, uint64_t* length,
                             gsvContext_t context) {
  return c::guard([&] {
    c::write_text(chain_of(spec, c::required(context, "context")).text, text, capacity, length);
  });
}

gsvResult_t gsvGetSpecInfo(char const* spec, uint64_t count, gsvDtype_t dtype, gsvSpecInfo_t* info,
                           gsvContext_t context) {
  return c::guard([&] {
    if (count > kMaxPieceElements)
      throw Error(Code::invalid_argument, "count: expected at most " +
                                              std::to_string(kMaxPieceElements) +
                                              ", the longest piece; longer tensors are cut");
    Chain const chain = chain_of(spec, c::required(context, "context"));
    Compressor const& compressor = *chain.compressor;
    TensorInfo const tensor{.num_elements = count, .dtype = c::dtype_of(dtype)};
    bindings::TensorMemory const memory = bindings::memory_of(chain, tensor);
    gsvSpecInfo known = GSV_INIT(gsvSpecInfo);
    known.claims = claim_bits(compressor.claims());
    known.contraction = compressor.claims().contraction;
    known.num_rounds = static_cast<std::uint32_t>(compressor.num_rounds());
    known.feedback = chain.feedback.enabled ? 1 : 0;
    known.payload_bytes = memory.payloads;
    known.settled_bytes = compressor.settled_bytes(compressor.num_rounds() - 1, tensor);
    known.state_bytes_merge = memory.state_merge();
    known.state_bytes_exact = memory.state_exact();
    known.workspace_bytes = memory.workspace;
    known.dense_below_elements = chain.dense_below_elements;
    c::write(known, info, "info");
  });
}

gsvResult_t gsvListPlugins(char* text, uint64_t capacity, uint64_t* length, gsvContext_t context) {
  return c::guard([&] {
    Registry const& registry = *c::required(context, "context").registry;
    c::write_text(bindings::plugins_json(registry, gsvGetVersionText()), text, capacity, length);
  });
}

gsvResult_t gsvEncodeBound(uint64_t count, gsvDtype_t dtype, char const* spec,
                           uint64_t* capacity_bytes, gsvContext_t context) {
  return c::guard([&] {
    c::required(capacity_bytes, "capacity_bytes") =
        codec_for(spec, count, dtype, {}, c::required(context, "context")).capacity_bytes();
  });
}

gsvResult_t gsvEncode(void const* gradient, void* payload, uint64_t capacity_bytes,
                      uint64_t* payload_bytes, uint64_t count, gsvDtype_t dtype, char const* spec,
                      float* residual, gsvEncodeOptions_t const* options, gsvContext_t context,
                      gsvStream_t) {
  return c::guard([&] {
    gsvContext const& ctx = c::required(context, "context");
    gsvEncodeOptions const given = c::read(options, "options");
    if (count != 0) c::required(static_cast<char const*>(gradient), "gradient");
    if (residual != nullptr) require_feedback(chain_of(spec, ctx));
    bindings::OfflineCodec codec =
        codec_for(spec, count, dtype, {.step = given.step, .rank = given.rank}, ctx);
    std::span<float> const rest{residual,
                                residual == nullptr ? 0 : static_cast<std::size_t>(count)};
    Bytes const room =
        c::required_array(static_cast<std::byte*>(payload), capacity_bytes, "payload");
    encode_into(codec, {gradient, count, c::dtype_of(dtype)}, rest, room,
                c::required(payload_bytes, "payload_bytes"));
  });
}

gsvResult_t gsvDecode(void const* payload, uint64_t payload_bytes, void* result, uint64_t count,
                      gsvDtype_t dtype, char const* spec, gsvContext_t context, gsvStream_t) {
  return c::guard([&] {
    ConstBytes const bytes =
        c::required_array(static_cast<std::byte const*>(payload), payload_bytes, "payload");
    TensorView const view(result, count, c::dtype_of(dtype));
    Bytes const room =
        c::required_array(static_cast<std::byte*>(result), view.num_bytes(), "result");
    PayloadHeader header;
    bindings::throw_if_failed(wire::read_header(bytes, header));
    bindings::OfflineCodec codec =
        codec_for(spec, count, dtype, {.step = header.step, .rank = header.rank},
                  c::required(context, "context"));
    std::ranges::fill(room, std::byte{0});  // it adds to what is there
    codec.decode(bytes, view);
  });
}

}  // extern "C"
