// SPDX-License-Identifier: Apache-2.0
// A plug-in that is right but for what its build says: see CMakeLists.txt.
#include <stddef.h>

#include "gradsieve/plugin.h"

#ifndef PLUGIN_ABI
#define PLUGIN_ABI GSV_PLUGIN_ABI_VERSION
#endif
#ifndef PLUGIN_SIZE
#define PLUGIN_SIZE sizeof(gsvPluginV1x_t)
#endif
#ifndef PLUGIN_USES
#define PLUGIN_USES 0
#endif
#ifndef PLUGIN_ID
#define PLUGIN_ID 170
#endif
#ifndef PLUGIN_NAME
#define PLUGIN_NAME "broken"
#endif
#ifndef PLUGIN_DECODE
#define PLUGIN_DECODE decode_add
#endif
#ifndef PLUGIN_CLAIMS
#define PLUGIN_CLAIMS 0
#endif
#ifndef PLUGIN_CREATED
#define PLUGIN_CREATED gsvSuccess
#endif

static gsvResult_t create(gsvParamValue_t const* values, uint32_t num_values,
                          uint32_t with_feedback, void** codec) {
  (void)values, (void)num_values, (void)with_feedback;
  *codec = NULL;
  return PLUGIN_CREATED;
}

static void destroy(void* codec) { (void)codec; }

static void describe(void const* codec, gsvCodecInfo_t* info) {
  (void)codec;
  info->claims = PLUGIN_CLAIMS;
}

static void round_info(void const* codec, uint32_t round, gsvPiece_t const* piece,
                       gsvRoundInfo_t* info) {
  (void)codec, (void)round, (void)piece, (void)info;
}

static gsvResult_t encode(void const* codec, gsvCall_t const* call, gsvPiece_t const* piece,
                          void const* corrected, gsvBody_t const* body) {
  (void)codec, (void)call, (void)piece, (void)corrected;
  *body->num_bytes = body->capacity_bytes + 1;  // more than there is room for
  return gsvSuccess;
}

gsvResult_t decode_add(void const* codec, gsvCall_t const* call, gsvPiece_t const* piece,
                       void const* body, uint64_t num_bytes, double weight, void* accumulator);
gsvResult_t decode_add(void const* codec, gsvCall_t const* call, gsvPiece_t const* piece,
                       void const* body, uint64_t num_bytes, double weight, void* accumulator) {
  (void)codec, (void)call, (void)piece, (void)body, (void)num_bytes, (void)weight,
      (void)accumulator;
  return gsvSuccess;
}

GSV_PLUGIN_EXPORT gsv_plugin_v1x = {
    .abi_version = PLUGIN_ABI,
    .struct_size = PLUGIN_SIZE,
    .payload_id = PLUGIN_ID,
    .uses = PLUGIN_USES,
    .name = PLUGIN_NAME,
    .summary = "Right but for one thing, which differs from build to build.",
    .paper = "-",
    .create = create,
    .destroy = destroy,
    .describe = describe,
    .round_info = round_info,
    .encode = encode,
    .decode_add = PLUGIN_DECODE,
};
