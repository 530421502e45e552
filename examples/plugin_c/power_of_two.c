// SPDX-License-Identifier: Apache-2.0
// A compressor in C11: the largest power of two below each element, in 8 bits.
//
//   body: int32 exponent E of the largest element | num_elements codes
//   code: sign in the top bit; below it 0 for zero, else 1 + (E − exponent of the element)
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "gradsieve/plugin.h"

enum { kAllZero = -1000, kLowestExponent = -149, kHighestExponent = 127 };

typedef struct PowerOfTwo {
  int64_t range;  ///< elements smaller than 2^(E − range) are dropped
} PowerOfTwo;

static gsvResult_t create(gsvParamValue_t const* values, uint32_t num_values,
                          uint32_t with_feedback, void** codec) {
  // One object per range, made ahead: nothing to allocate and nothing to free.
  static const PowerOfTwo objects[] = {{8}, {16}, {32}, {64}, {126}};
  (void)with_feedback;
  if (num_values != 1) return gsvInvalidArgument;
  for (size_t i = 0; i < sizeof objects / sizeof objects[0]; ++i) {
    if (values[0].integer <= objects[i].range) {
      *codec = (void*)&objects[i];
      return gsvSuccess;
    }
  }
  return gsvInvalidArgument;
}

static void destroy(void* codec) { (void)codec; }

static void describe(void const* codec, gsvCodecInfo_t* info) {
  PowerOfTwo const* const self = codec;
  info->claims = gsvClaimDeterministic | gsvClaimFixedRate;
  // Each kept element is at least halved in error; with a short range nothing is promised of the
  // rest.
  info->contraction = self->range == 126 ? 0.74 : 0.0;
}

static void round_info(void const* codec, uint32_t round, gsvPiece_t const* piece,
                       gsvRoundInfo_t* info) {
  (void)codec, (void)round;
  info->exchange = gsvExchangeGather;
  info->capacity_bytes = sizeof(int32_t) + piece->num_elements;
}

/// The exponent of |x| as 2^e <= |x| < 2^(e + 1).
static int exponent_of(float x) {
  int exponent = 0;
  frexpf(x, &exponent);
  return exponent - 1;
}

static int32_t largest_exponent(float const* elements, uint64_t count) {
  float largest = 0.0f;
  for (uint64_t i = 0; i < count; ++i) largest = fmaxf(largest, fabsf(elements[i]));
  return largest == 0.0f ? kAllZero : exponent_of(largest);
}

static uint8_t code_of(PowerOfTwo const* self, float x, int32_t largest) {
  if (x == 0.0f) return 0;
  int32_t const below = largest - exponent_of(x);
  if (below > self->range) return 0;
  return (uint8_t)((signbit(x) ? 128 : 0) + 1 + below);
}

static float value_of(uint8_t code, int32_t largest) {
  if ((code & 127) == 0) return 0.0f;
  float const magnitude = ldexpf(1.0f, largest - ((code & 127) - 1));
  return code & 128 ? -magnitude : magnitude;
}

static gsvResult_t encode(void const* codec, gsvCall_t const* call, gsvPiece_t const* piece,
                          void const* corrected, gsvBody_t const* body) {
  float const* const elements = corrected;
  int32_t const largest = largest_exponent(elements, piece->num_elements);
  uint8_t* const codes = (uint8_t*)body->data + sizeof largest;
  (void)call;
  memcpy(body->data, &largest, sizeof largest);
  for (uint64_t i = 0; i < piece->num_elements; ++i)
    codes[i] = code_of(codec, elements[i], largest);
  *body->num_bytes = sizeof largest + piece->num_elements;
  return gsvSuccess;
}

// One pass less than compensate, encode, retain: the rest is known while the code is.
static gsvResult_t encode_with_residual(void const* codec, gsvCall_t const* call,
                                        gsvPiece_t const* piece, void const* gradient,
                                        float const* residual_in, float* residual_out, float carry,
                                        gsvBody_t const* body) {
  call->host->compensate(call, piece, gradient, residual_in, residual_out, carry);
  int32_t const largest = largest_exponent(residual_out, piece->num_elements);
  uint8_t* const codes = (uint8_t*)body->data + sizeof largest;
  memcpy(body->data, &largest, sizeof largest);
  for (uint64_t i = 0; i < piece->num_elements; ++i) {
    codes[i] = code_of(codec, residual_out[i], largest);
    residual_out[i] -= value_of(codes[i], largest);
  }
  *body->num_bytes = sizeof largest + piece->num_elements;
  return gsvSuccess;
}

static gsvResult_t decode_add(void const* codec, gsvCall_t const* call, gsvPiece_t const* piece,
                              void const* body, uint64_t num_bytes, double weight,
                              void* accumulator) {
  int32_t largest = 0;
  (void)codec, (void)call;
  if (num_bytes != sizeof largest + piece->num_elements) return gsvCorruptPayload;
  memcpy(&largest, body, sizeof largest);
  if (largest != kAllZero && (largest < kLowestExponent || largest > kHighestExponent))
    return gsvCorruptPayload;
  uint8_t const* const codes = (uint8_t const*)body + sizeof largest;
  float* const sum = accumulator;
  for (uint64_t i = 0; i < piece->num_elements; ++i) {
    sum[i] += (float)weight * value_of(codes[i], largest);
  }
  return gsvSuccess;
}

static const gsvParamInfo_t kParams[] = {
    {.struct_size = sizeof(gsvParamInfo_t),
     .type = gsvParamInteger,
     .name = "range",
     .unit = "powers of two",
     .default_value = "126",
     .min = 1,
     .max = 126,
     .summary =
         "Elements this far below the largest are dropped; rounded up to 8, 16, 32, 64, 126."}};

// [tag: export]
GSV_PLUGIN_EXPORT gsv_plugin_v1x = {
    .abi_version = GSV_PLUGIN_ABI_VERSION,
    .struct_size = sizeof(gsvPluginV1x_t),
    .kind = gsvPluginCompressor,
    .payload_id = 160,
    .uses = gsvPluginUsesFused,
    .name = "power_of_two",
    .summary = "The largest power of two below each element, in 8 bits.",
    .paper = "-",
    .params = kParams,
    .num_params = 1,
    .positional = "range",
    .create = create,
    .destroy = destroy,
    .describe = describe,
    .round_info = round_info,
    .encode = encode,
    .encode_with_residual = encode_with_residual,
    .decode_add = decode_add,
};
// [end: export]
