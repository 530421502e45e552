// SPDX-License-Identifier: Apache-2.0
// A compressor in C++: int8 levels of one scale that all ranks agree on in a round of its own.
//
//   round 0: the largest magnitude of this rank, f32; absorb keeps the largest of all in a slot
//   round 1: num_elements levels of int8
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>

#include "gradsieve/plugin.h"

namespace {

enum Round : std::uint32_t { kAgree, kValues };

struct CommonScale {
  float num_levels = 127.0F;
};

CommonScale const& self(void const* codec) { return *static_cast<CommonScale const*>(codec); }

gsvResult_t create(gsvParamValue_t const* values, std::uint32_t num_values, std::uint32_t,
                   void** codec) {
  if (num_values != 1) return gsvInvalidArgument;
  auto* const made = new (std::nothrow) CommonScale;
  if (made == nullptr) return gsvOutOfMemory;
  made->num_levels = static_cast<float>(values[0].integer);
  *codec = made;
  return gsvSuccess;
}

void destroy(void* codec) { delete static_cast<CommonScale*>(codec); }

void describe(void const*, gsvCodecInfo_t* info) {
  info->claims = gsvClaimDeterministic | gsvClaimFixedRate;
  info->num_rounds = 2;
}

void round_info(void const*, std::uint32_t round, gsvPiece_t const* piece, gsvRoundInfo_t* info) {
  info->exchange = gsvExchangeGather;
  info->capacity_bytes = round == kAgree ? sizeof(float) : piece->num_elements;
}

std::uint32_t slots(void const*, gsvPiece_t const*, gsvSlotInfo_t* infos, std::uint32_t capacity) {
  if (capacity > 0) infos[0] = {sizeof(gsvSlotInfo_t), gsvSlotReplicated, "scale", sizeof(float)};
  return 1;
}

float scale_of(gsvCall_t const* call) {
  gsvSlot_t const& slot = call->slots[0];
  float scale = 0.0F;
  std::memcpy(&scale, *slot.written != 0 ? slot.next : slot.committed, sizeof scale);
  return scale;
}

/// Rounded half to even, as the FP environment of a step has it.
std::int8_t level_of(CommonScale const& codec, float x, float scale) {
  float const level = std::nearbyint(x / scale * codec.num_levels);
  return static_cast<std::int8_t>(std::clamp(level, -codec.num_levels, codec.num_levels));
}

void write_body(gsvBody_t const* body, void const* data, std::uint64_t num_bytes) {
  std::memcpy(body->data, data, num_bytes);
  *body->num_bytes = num_bytes;
}

/// The elements of a piece in blocks, on the threads of the call.
struct Block {
  CommonScale const* codec;
  float const* elements;
  std::int8_t* levels;
  float scale;
};

gsvResult_t encode(void const* codec, gsvCall_t const* call, gsvPiece_t const* piece,
                   void const* corrected, gsvBody_t const* body) {
  auto const* const elements = static_cast<float const*>(corrected);
  if (call->round == kAgree) {
    float largest = 0.0F;
    for (std::uint64_t i = 0; i < piece->num_elements; ++i)
      largest = std::max(largest, std::fabs(elements[i]));
    write_body(body, &largest, sizeof largest);
    return gsvSuccess;
  }
  Block block{&self(codec), elements, static_cast<std::int8_t*>(body->data), scale_of(call)};
  *body->num_bytes = piece->num_elements;
  if (block.scale == 0.0F) {
    std::memset(body->data, 0, piece->num_elements);
    return gsvSuccess;
  }
  constexpr std::uint64_t kGrain = 65536;
  call->host->parallel_for(
      call, piece->num_elements, kGrain,
      [](void* argument, std::uint64_t begin, std::uint64_t end) {
        auto const& given = *static_cast<Block const*>(argument);
        for (std::uint64_t i = begin; i < end; ++i)
          given.levels[i] = level_of(*given.codec, given.elements[i], given.scale);
      },
      &block);
  return gsvSuccess;
}

gsvResult_t absorb(void const*, gsvCall_t const* call, gsvPiece_t const*,
                   gsvReceived_t const* received) {
  float largest = 0.0F;
  for (std::uint32_t rank = 0; rank < received->count; ++rank) {
    std::uint64_t num_bytes = 0;
    void const* const body = received->body(received->data, rank, &num_bytes);
    float magnitude = 0.0F;
    if (num_bytes != sizeof magnitude) return gsvCorruptPayload;
    std::memcpy(&magnitude, body, sizeof magnitude);
    if (!std::isfinite(magnitude) || std::signbit(magnitude)) return gsvCorruptPayload;
    largest = std::max(largest, magnitude);
  }
  gsvSlot_t const& slot = call->slots[0];
  std::memcpy(slot.next, &largest, sizeof largest);
  *slot.written = 1;
  return gsvSuccess;
}

gsvResult_t decode_add(void const* codec, gsvCall_t const* call, gsvPiece_t const* piece,
                       void const* body, std::uint64_t num_bytes, double weight,
                       void* accumulator) {
  if (num_bytes != piece->num_elements) return gsvCorruptPayload;
  auto const* const levels = static_cast<std::int8_t const*>(body);
  auto* const sum = static_cast<float*>(accumulator);
  float const step = scale_of(call) / self(codec).num_levels;
  // A peer wrote the levels: all are looked at before the first store.
  for (std::uint64_t i = 0; i < num_bytes; ++i)
    if (std::fabs(static_cast<float>(levels[i])) > self(codec).num_levels) return gsvCorruptPayload;
  for (std::uint64_t i = 0; i < num_bytes; ++i) {
    float const decoded = static_cast<float>(levels[i]) * step;
    sum[i] += static_cast<float>(weight) * decoded;
  }
  return gsvSuccess;
}

gsvParamInfo_t level_param() {
  gsvParamInfo_t param = GSV_INIT(gsvParamInfo_t);
  param.type = gsvParamInteger;
  param.name = "levels";
  param.unit = "levels";
  param.default_value = "127";
  param.min = 1;
  param.max = 127;
  param.summary = "Levels on each side of zero.";
  return param;
}

gsvParamInfo_t const kParams[] = {level_param()};

gsvPluginV1x_t plugin() {
  gsvPluginV1x_t table = GSV_INIT(gsvPluginV1x_t);
  table.abi_version = GSV_PLUGIN_ABI_VERSION;
  table.payload_id = 161;
  table.uses = gsvPluginUsesRounds | gsvPluginUsesSlots;
  table.name = "common_scale";
  table.summary = "Levels of int8 on one scale that all ranks agree on first.";
  table.paper = "-";
  table.params = kParams;
  table.num_params = 1;
  table.positional = "levels";
  table.create = create;
  table.destroy = destroy;
  table.describe = describe;
  table.round_info = round_info;
  table.slots = slots;
  table.encode = encode;
  table.absorb = absorb;
  table.decode_add = decode_add;
  return table;
}

}  // namespace

GSV_PLUGIN_EXPORT gsv_plugin_v1x = plugin();
