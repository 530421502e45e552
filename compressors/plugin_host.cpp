// SPDX-License-Identifier: Apache-2.0
#include "compressors/plugin_host.hpp"

#include <cstddef>

#include "core/philox.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::plugin {
namespace {

static_assert(sizeof(gsvStepWords) == sizeof(StepWords) &&
              offsetof(gsvStepWords, loss_scale) == offsetof(StepWords, loss_scale) &&
              offsetof(gsvStepWords, parity) == offsetof(StepWords, parity) &&
              offsetof(gsvStepWords, flags) == offsetof(StepWords, flags) &&
              offsetof(gsvStepWords, kept_elements) == offsetof(StepWords, kept_elements) &&
              offsetof(gsvStepWords, overflowed_elements) ==
                  offsetof(StepWords, overflowed_elements));
static_assert(gsvStepNonFinite == kStepNonFinite && gsvStepOverflow == kStepOverflow);
static_assert(sizeof(bool) == sizeof(std::uint8_t));

ExecContext const& context_of(gsvCall const* call) noexcept {
  return *static_cast<ExecContext const*>(call->host_data);
}

void parallel_for(gsvCall const* call, std::uint64_t count, std::uint64_t grain,
                  void (*body)(void*, std::uint64_t, std::uint64_t), void* argument) {
  ThreadPool* const threads = context_of(call).threads;
  if (grain == 0) grain = count;
  if (threads == nullptr) {
    for (std::uint64_t begin = 0; begin < count; begin += grain)
      body(argument, begin, begin + std::min(grain, count - begin));
    return;
  }
  threads->parallel_for(
      count, grain, [=](std::uint64_t begin, std::uint64_t end) { body(argument, begin, end); });
}

void random(gsvCall const* call, gsvPiece const* piece, std::uint32_t purpose, std::uint32_t shared,
            std::uint64_t block, std::uint32_t words[4]) {
  std::uint32_t const rank =
      shared != 0 ? kSharedDraw : static_cast<std::uint32_t>(call->rank) | (call->owned << 31);
  PhiloxKey const key =
      philox_key(call->seed, piece->tensor_id, static_cast<Purpose>(purpose), rank);
  auto const drawn = philox(key, block, call->words->step);
  std::copy(drawn.begin(), drawn.end(), words);
}

void compensate(gsvCall const* call, gsvPiece const* piece, void const* gradient,
                float const* residual_in, float* residual_out, float carry) {
  auto const count = static_cast<std::size_t>(piece->num_elements);
  ConstTensorView const view(gradient, count, static_cast<DType>(piece->dtype));
  ResidualView residual{.in = {}, .out = {residual_out, count}, .carry = carry};
  if (residual_in != nullptr) residual.in = {residual_in, count};
  call->words->flags |= kernels::compensate(context_of(call), view, residual);
}

// The first version has no features beyond its struct.
void const* feature(char const*) { return nullptr; }

}  // namespace

gsvPiece piece_of(TensorInfo const& info) noexcept {
  return {sizeof(gsvPiece),  static_cast<std::uint32_t>(info.dtype),
          info.id,           info.offset_elements,
          info.num_elements, info.num_rows};
}

gsvSlot slot_of(SlotView const& slot) noexcept {
  gsvSlot given = GSV_INIT(gsvSlot);
  given.kind = static_cast<std::uint32_t>(slot.info.kind);
  given.name = slot.info.name.data();
  given.committed = slot.committed.data();
  given.next = slot.next.data();
  given.num_bytes = slot.next.size();
  given.written = reinterpret_cast<std::uint8_t*>(slot.written);
  return given;
}

gsvStepWords* words_of(StepWords& words) noexcept {
  return reinterpret_cast<gsvStepWords*>(&words);
}

gsvReceived received_of(std::span<ConstBytes const> const& bodies) noexcept {
  gsvReceived received = GSV_INIT(gsvReceived);
  received.count = static_cast<std::uint32_t>(bodies.size());
  received.data = &bodies;
  received.body = [](void const* data, std::uint32_t index, std::uint64_t* num_bytes) {
    ConstBytes const body = (*static_cast<std::span<ConstBytes const> const*>(data))[index];
    *num_bytes = body.size();
    return static_cast<void const*>(body.data());
  };
  return received;
}

gsvMassSink sink_of(MassSink& sink) noexcept {
  gsvMassSink given = GSV_INIT(gsvMassSink);
  given.self = &sink;
  given.undelivered = [](void* self, gsvPiece const* piece) -> float* {
    TensorInfo const info{piece->tensor_id, piece->offset_elements, piece->num_elements,
                          piece->num_rows, static_cast<DType>(piece->dtype)};
    std::span<float> const room = static_cast<MassSink*>(self)->undelivered(info);
    return room.size() == piece->num_elements ? room.data() : nullptr;
  };
  return given;
}

gsvHost const& host() noexcept {
  static gsvHost const services = {
      sizeof(gsvHost), GSV_PLUGIN_ABI_VERSION, parallel_for, random, compensate, feature};
  return services;
}

}  // namespace gradsieve::plugin
