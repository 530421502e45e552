// SPDX-License-Identifier: Apache-2.0
#include "compressors/zstd_codec.hpp"

// Contexts in memory handed in, so that no step allocates, are outside zstd's stable interface.
#define ZSTD_STATIC_LINKING_ONLY
#include <algorithm>
#include <cstring>

#include <zstd.h>

#include "compressors/body_fields.hpp"

namespace gradsieve {
namespace {

constexpr std::size_t kWrapperBytes = 16;
constexpr std::uint32_t kStored = 0;
constexpr std::uint32_t kFrame = 1;
constexpr Status kBadFrame{Code::corrupt_payload, "zstd: the frame does not decode"};

// zstd picks its tables by level and by these classes of input size; a smaller input may take more.
std::size_t compression_bytes(int level, std::size_t num_bytes) noexcept {
  std::size_t most = 0;
  constexpr std::size_t kClasses[] = {std::size_t{16} << 10, std::size_t{128} << 10,
                                      std::size_t{256} << 10, SIZE_MAX};
  for (std::size_t const largest : kClasses) {
    std::size_t const size = std::min(num_bytes, largest);
    most = std::max(most, ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(level, size, 0)));
  }
  return most;
}

/// Compresses to less than the input; 0 if that cannot be done.
std::size_t compress(ExecContext const& ctx, int level, ConstBytes input, Bytes output) noexcept {
  WorkspaceScope const scope(*ctx.workspace);
  std::span<std::byte> const memory =
      ctx.workspace->take<std::byte>(compression_bytes(level, input.size()));
  if (memory.empty() || input.empty()) return 0;
  ZSTD_CCtx* const context = ZSTD_initStaticCCtx(memory.data(), memory.size());
  if (context == nullptr) return 0;
  std::size_t const room = std::min(output.size(), input.size() - 1);
  std::size_t const result =
      ZSTD_compressCCtx(context, output.data(), room, input.data(), input.size(), level);
  return ZSTD_isError(result) != 0U ? 0 : result;
}

// One frame and nothing behind it, which says its size itself.
bool is_one_frame(ConstBytes frame, std::size_t raw_bytes) noexcept {
  return frame.size() >= 4 && wire::load<std::uint32_t>(frame.data()) == ZSTD_MAGICNUMBER &&
         ZSTD_getFrameContentSize(frame.data(), frame.size()) == raw_bytes &&
         ZSTD_findFrameCompressedSize(frame.data(), frame.size()) == frame.size();
}

}  // namespace

ZstdCodec::ZstdCodec(Params const& params) : level_(static_cast<int>(params.integer("level"))) {}

std::size_t ZstdCodec::bound(std::size_t num_bytes) const noexcept {
  return kWrapperBytes + num_bytes;
}

std::size_t ZstdCodec::workspace_bytes(std::size_t num_bytes) const noexcept {
  return Workspace::padded(std::max(compression_bytes(level_, num_bytes), ZSTD_estimateDCtxSize()));
}

Status ZstdCodec::encode(ExecContext const& ctx, ConstBytes input, Body output) const noexcept {
  Bytes const out = output.resize(bound(input.size()));
  if (out.empty()) return kBodyTooSmall;
  std::size_t num_bytes = compress(ctx, level_, input, out.subspan(kWrapperBytes));
  std::uint32_t const form = num_bytes > 0 ? kFrame : kStored;
  if (form == kStored) {
    num_bytes = input.size();
    if (!input.empty()) std::memcpy(out.data() + kWrapperBytes, input.data(), num_bytes);
  }
  wire::store<std::uint32_t>(out.data(), form);
  wire::store<std::uint32_t>(out.data() + 4, 0);
  wire::store<std::uint64_t>(out.data() + 8, input.size());
  static_cast<void>(output.resize(kWrapperBytes + num_bytes));
  return {};
}

Status ZstdCodec::decode(ExecContext const& ctx, ConstBytes input, Bytes output,
                         std::size_t& num_bytes) const noexcept {
  num_bytes = 0;
  if (input.size() < kWrapperBytes) return {Code::corrupt_payload, "zstd: the body is cut off"};
  auto const form = wire::load<std::uint32_t>(input.data());
  auto const raw_bytes = wire::load<std::uint64_t>(input.data() + 8);
  ConstBytes const rest = input.subspan(kWrapperBytes);
  if (form > kFrame || wire::load<std::uint32_t>(input.data() + 4) != 0) {
    return {Code::corrupt_payload, "zstd: unknown form"};
  }
  if (raw_bytes > output.size()) {
    return {Code::corrupt_payload, "zstd: more bytes than the round allows"};
  }
  auto const raw = static_cast<std::size_t>(raw_bytes);
  if (form == kStored) {
    if (rest.size() != raw) return {Code::corrupt_payload, "zstd: the stored body is cut off"};
    if (raw > 0) std::memcpy(output.data(), rest.data(), raw);
    num_bytes = raw;
    return {};
  }
  if (rest.size() >= raw || !is_one_frame(rest, raw)) return kBadFrame;
  WorkspaceScope const scope(*ctx.workspace);
  std::span<std::byte> const memory = ctx.workspace->take<std::byte>(ZSTD_estimateDCtxSize());
  if (memory.empty()) return kWorkspaceTooSmall;
  ZSTD_DCtx* const context = ZSTD_initStaticDCtx(memory.data(), memory.size());
  if (context == nullptr) return kWorkspaceTooSmall;
  std::size_t const result =
      ZSTD_decompressDCtx(context, output.data(), raw, rest.data(), rest.size());
  if (ZSTD_isError(result) != 0U || result != raw) return kBadFrame;
  num_bytes = raw;
  return {};
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_BYTE_CODEC(
    zstd_codec, ZstdCodec,
    PluginInfo{.name = "zstd",
               .kind = PluginKind::byte_codec,
               .payload_id = 24,
               .summary = "Passes the whole body through zstd where that saves bytes.",
               .paper = "Collet and Kucherawy, RFC 8878, 2021",
               .params = {{.name = "level",
                           .type = ParamType::integer,
                           .unit = "level",
                           .default_value = "1",
                           .min = 1.0,
                           .max = 19.0,
                           .summary = "higher is smaller and slower"}},
               .positional = "level"});
