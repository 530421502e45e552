// SPDX-License-Identifier: Apache-2.0
// A plug-in that uses what the samples leave out: a shard-sum with its own second encoding and the
// mass sink, random numbers, f64, blocks, a workspace, features.
//
//   f32 body: the upper 16 bits of each element, rounded stochastically | f64 body: the elements
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "gradsieve/plugin.h"

enum { kPurpose = 16, kBlockElements = 8 };

static gsvResult_t create(gsvParamValue_t const* values, uint32_t num_values,
                          uint32_t with_feedback, void** codec) {
  (void)values, (void)num_values, (void)with_feedback;
  *codec = NULL;
  return gsvSuccess;
}

static void destroy(void* codec) { (void)codec; }

static void describe(void const* codec, gsvCodecInfo_t* info) {
  (void)codec;
  info->claims = gsvClaimDeterministic | gsvClaimFixedRate | gsvClaimElementwise | gsvClaimF64;
  info->block_elements = kBlockElements;
}

static uint64_t body_bytes(gsvPiece_t const* piece) {
  return piece->num_elements * (piece->dtype == gsvFloat64 ? sizeof(double) : sizeof(uint16_t));
}

static void round_info(void const* codec, uint32_t round, gsvPiece_t const* piece,
                       gsvRoundInfo_t* info) {
  (void)codec, (void)round;
  info->exchange = gsvExchangeShardSum;
  info->capacity_bytes = body_bytes(piece);
}

static uint64_t workspace_bytes(void const* codec, gsvPiece_t const* piece) {
  (void)codec;
  return piece->num_elements * sizeof(uint16_t);
}

static float widened(uint16_t code) {
  uint32_t const bits = (uint32_t)code << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/// Draws of 16 bits: eight elements of the tensor share a block of four words.
static uint16_t narrowed(gsvCall_t const* call, gsvPiece_t const* piece, float x, uint64_t i) {
  uint64_t const element = piece->offset_elements + i;
  uint32_t words[4];
  uint32_t bits;
  call->host->random(call, piece, kPurpose, 0, element / 8, words);
  memcpy(&bits, &x, sizeof bits);
  uint32_t const draw = words[element % 8 / 2] >> (element % 2 * 16) & 0xffffu;
  uint32_t const rounded = bits + draw;
  // Never past the largest finite number, and a denormal is what it is.
  return (uint16_t)((rounded & 0x7f800000u) == 0x7f800000u ? bits >> 16 : rounded >> 16);
}

static gsvResult_t encode(void const* codec, gsvCall_t const* call, gsvPiece_t const* piece,
                          void const* corrected, gsvBody_t const* body) {
  (void)codec;
  *body->num_bytes = body_bytes(piece);
  if (piece->dtype == gsvFloat64) {
    memcpy(body->data, corrected, *body->num_bytes);
    return gsvSuccess;
  }
  float const* const elements = corrected;
  uint16_t* const codes = call->workspace;
  if (call->workspace_bytes < *body->num_bytes) return gsvInternal;
  for (uint64_t i = 0; i < piece->num_elements; ++i)
    codes[i] = narrowed(call, piece, elements[i], i);
  memcpy(body->data, codes, *body->num_bytes);
  return gsvSuccess;
}

static gsvResult_t encode_owned(void const* codec, gsvCall_t const* call, gsvPiece_t const* piece,
                                float const* sum, gsvBody_t const* body,
                                gsvMassSink_t const* sink) {
  float* const rest = sink->undelivered(sink->self, piece);
  if (rest == NULL || call->owned != 1) return gsvInternal;
  // Asks for what no host has, to see that it may.
  if (call->host->feature("nothing of this name") != NULL) return gsvInternal;
  gsvResult_t const result = encode(codec, call, piece, sum, body);
  uint16_t const* const codes = call->workspace;
  for (uint64_t i = 0; i < piece->num_elements; ++i) {
    if (!isfinite(sum[i])) call->words->flags |= gsvStepNonFinite;
    rest[i] = sum[i] - widened(codes[i]);
  }
  return result;
}

static gsvResult_t decode_add(void const* codec, gsvCall_t const* call, gsvPiece_t const* piece,
                              void const* body, uint64_t num_bytes, double weight,
                              void* accumulator) {
  (void)codec, (void)call;
  if (num_bytes != body_bytes(piece)) return gsvCorruptPayload;
  if (piece->dtype == gsvFloat64) {
    double const* const elements = body;
    double* const sum = accumulator;
    for (uint64_t i = 0; i < piece->num_elements; ++i) sum[i] += weight * elements[i];
    return gsvSuccess;
  }
  uint16_t const* const codes = body;
  float* const sum = accumulator;
  for (uint64_t i = 0; i < piece->num_elements; ++i)
    if (!isfinite(widened(codes[i]))) return gsvCorruptPayload;
  for (uint64_t i = 0; i < piece->num_elements; ++i) sum[i] += (float)weight * widened(codes[i]);
  return gsvSuccess;
}

static void const* feature(char const* name) { return strcmp(name, "full_use") == 0 ? name : NULL; }

GSV_PLUGIN_EXPORT gsv_plugin_v1x = {
    .abi_version = GSV_PLUGIN_ABI_VERSION,
    .struct_size = sizeof(gsvPluginV1x_t),
    .kind = gsvPluginCompressor,
    .payload_id = 171,
    .uses = gsvPluginUsesOwned | gsvPluginUsesF64 | gsvPluginUsesFeatures,
    .name = "full_use",
    .summary = "The upper half of each element, rounded stochastically.",
    .paper = "-",
    .create = create,
    .destroy = destroy,
    .describe = describe,
    .round_info = round_info,
    .workspace_bytes = workspace_bytes,
    .encode = encode,
    .encode_owned = encode_owned,
    .decode_add = decode_add,
    .feature = feature,
};
