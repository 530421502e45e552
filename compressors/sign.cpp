// SPDX-License-Identifier: Apache-2.0
#include "compressors/sign.hpp"

#include <array>
#include <string>
#include <utility>

#include "compressors/batches.hpp"
#include "compressors/body_fields.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {
namespace {

constexpr std::size_t kHeaderBytes = kernels::kSignHeader.size();  // has_zeros, three zero bytes
constexpr std::array<std::byte, kHeaderBytes> kWithoutZeros = {};

ConstBytes header_of(bool has_zeros) noexcept {
  return has_zeros ? kernels::kSignHeader : kWithoutZeros;
}

/// Where the planes and the scales of n elements lie.
struct Layout {
  std::size_t plane_bytes;
  std::size_t planes_end;
  std::size_t scales_begin;
  std::size_t num_bytes;

  Layout(std::uint64_t num_elements, std::uint64_t block_elements, bool has_zeros) noexcept
      : plane_bytes(wire::bytes_for_bits(num_elements)),
        planes_end(kHeaderBytes + plane_bytes * (has_zeros ? 2 : 1)),
        scales_begin(padded_to_4(planes_end)),
        num_bytes(scales_begin +
                  static_cast<std::size_t>(num_blocks(num_elements, block_elements)) *
                      sizeof(float)) {}
};

/// Whether the bits of the last byte that stand for no element are zero.
bool ends_clear(ExecContext const& ctx, ConstBytes plane, std::uint64_t num_elements) noexcept {
  auto const used = static_cast<unsigned>(num_elements % 8);
  return used == 0 || plane.empty() || kernels::check_clear(ctx, plane.last(1), {}, used);
}

}  // namespace

SignCompressor::SignCompressor(Params const& params)
    : block_elements_(static_cast<std::uint64_t>(params.integer("block"))) {
  if (block_elements_ % 8 == 0) return;
  throw Error(Code::invalid_argument, "sign: block=" + std::to_string(block_elements_) +
                                          " is not a multiple of 8, and two blocks would share a "
                                          "byte: expected a multiple of 8 in [8, 65536]");
}

Claims SignCompressor::claims() const noexcept {
  // ‖c‖₁² ≥ ‖c‖² of the m ≤ B elements that are not 0, and the mean is met to half of the smallest
  // denormal at worst, which is half of it: 1 − 1/4 remains.
  return {.elementwise = true,
          .cuda = true,
          .contraction = 0.75 / static_cast<double>(block_elements_)};
}

RoundInfo SignCompressor::round(int, TensorInfo const& piece) const noexcept {
  std::uint64_t const n = piece.num_elements;
  return {.exchange = ExchangeKind::shard_sum,
          .capacity_bytes = n == 0 ? 0 : Layout(n, block_elements_, true).num_bytes};
}

std::size_t SignCompressor::workspace_bytes(TensorInfo const& piece) const noexcept {
  return Workspace::padded(
             static_cast<std::size_t>(num_blocks(piece.num_elements, block_elements_)) *
             sizeof(float)) +
         Workspace::padded(sizeof(std::uint32_t));
}

std::shared_ptr<Batch const> SignCompressor::make_batch(ExecContext const& ctx,
                                                        std::span<BatchPiece const> pieces,
                                                        MemoryResource& memory) const {
  std::vector<kernels::Segment> segments = segments_of(ctx, pieces);
  for (kernels::Segment& segment : segments) {
    segment.scales_begin =
        segment.codes_begin + Layout(segment.num_elements, block_elements_, true).scales_begin;
  }
  return make_sign_batch(ctx, std::move(segments), block_elements_, memory);
}

/// What a new body is made of while it is not known whether the plane of zeros travels: that
/// decides the place of the scales. A device's body always has that plane.
struct SignCompressor::Draft {
  Bytes out;
  Bytes signs;
  Bytes zeros;
  std::span<float> scales;
  std::span<std::uint32_t> any_zero;
};

Status SignCompressor::open(ExecContext const& ctx, std::uint64_t num_elements, Body body,
                            Draft& draft) const noexcept {
  Layout const most(num_elements, block_elements_, true);
  draft.out = body.resize(most.num_bytes);
  if (draft.out.empty()) return kBodyTooSmall;
  draft.signs = draft.out.subspan(kHeaderBytes, most.plane_bytes);
  draft.zeros = draft.out.subspan(kHeaderBytes + most.plane_bytes, most.plane_bytes);
  draft.scales = ctx.backend == Backend::cuda
                     ? as_floats(draft.out.subspan(most.scales_begin))
                     : ctx.workspace->take<float>(num_blocks(num_elements, block_elements_));
  draft.any_zero = ctx.workspace->take<std::uint32_t>(1);
  if (draft.scales.empty() || draft.any_zero.empty()) return kWorkspaceTooSmall;
  kernels::clear(ctx, std::as_writable_bytes(draft.any_zero));
  return {};
}

void SignCompressor::close(ExecContext const& ctx, Draft const& draft, std::uint64_t num_elements,
                           Body body) const noexcept {
  bool const has_zeros = ctx.backend == Backend::cuda || draft.any_zero[0] != 0;
  Layout const at(num_elements, block_elements_, has_zeros);
  kernels::put_fields(ctx, header_of(has_zeros), draft.out.data());
  kernels::clear(ctx, draft.out.subspan(at.planes_end, at.scales_begin - at.planes_end));
  Bytes const scales = std::as_writable_bytes(draft.scales);
  std::byte* const place = draft.out.data() + at.scales_begin;
  if (place != scales.data()) kernels::copy(ctx, scales, {place, scales.size()});
  static_cast<void>(body.resize(at.num_bytes));
}

Status SignCompressor::do_encode(ExecContext const& ctx, int, TensorInfo const&,
                                 std::span<float const> corrected, StateView,
                                 Body body) const noexcept {
  WorkspaceScope const scope(*ctx.workspace);
  Draft draft;
  GRADSIEVE_RETURN_IF_ERROR(open(ctx, corrected.size(), body, draft));
  kernels::sign(ctx, corrected, block_elements_, draft.signs, draft.zeros, draft.scales, {},
                draft.any_zero.data());
  close(ctx, draft, corrected.size(), body);
  return {};
}

Status SignCompressor::do_encode_with_residual(ExecContext const& ctx, int, TensorInfo const&,
                                               ConstTensorView gradient, ResidualView residual,
                                               StateView, Body body) const noexcept {
  std::uint64_t const n = gradient.num_elements;
  WorkspaceScope const scope(*ctx.workspace);
  Draft draft;
  GRADSIEVE_RETURN_IF_ERROR(open(ctx, n, body, draft));
  raise_flags(ctx, kernels::sign_fused(ctx, gradient, residual, block_elements_, draft.signs,
                                       draft.zeros, draft.scales, draft.any_zero.data()));
  close(ctx, draft, n, body);
  return {};
}

Status SignCompressor::do_decode_add(ExecContext const& ctx, int, TensorInfo const&,
                                     ConstBytes body, float weight, StateView,
                                     std::span<float> accumulator) const noexcept {
  std::uint64_t const n = accumulator.size();
  bool const on_device = ctx.backend == Backend::cuda;
  bool const has_zeros =
      on_device || (body.size() >= kHeaderBytes && wire::load<std::uint32_t>(body.data()) == 1);
  if (body.size() < kHeaderBytes ||
      !kernels::check_fields(ctx, header_of(has_zeros), body.data())) {
    return {Code::corrupt_payload, "the sign body has no valid header"};
  }
  Layout const at(n, block_elements_, has_zeros);
  if (body.size() != at.num_bytes) {
    return {Code::corrupt_payload, "the sign body has the wrong length"};
  }
  ConstBytes const signs = body.subspan(kHeaderBytes, at.plane_bytes);
  ConstBytes const zeros =
      has_zeros ? body.subspan(kHeaderBytes + at.plane_bytes, at.plane_bytes) : ConstBytes{};
  ConstBytes const scales = body.subspan(at.scales_begin);
  if (has_zeros && !kernels::check_clear(ctx, signs, zeros, 0)) {
    return {Code::corrupt_payload, "an element of the sign body is negative and zero"};
  }
  ConstBytes const padding = body.subspan(at.planes_end, at.scales_begin - at.planes_end);
  if (!ends_clear(ctx, signs, n) || !ends_clear(ctx, zeros, n) ||
      !kernels::check_clear(ctx, padding, {}, 0)) {
    return {Code::corrupt_payload, "unused bits of the sign body are not zero"};
  }
  if (!kernels::check_scales(ctx, scales)) {
    return {Code::corrupt_payload, "a scale is negative or not finite"};
  }
  kernels::sign_add(ctx, signs.data(), has_zeros ? zeros.data() : nullptr, scales.data(),
                    block_elements_, weight, accumulator);
  return {};
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_COMPRESSOR(
    sign, SignCompressor,
    PluginInfo{
        .name = "sign",
        .kind = PluginKind::compressor,
        .payload_id = 6,
        .summary = "Sends the sign of every element, with one scale per block and a true zero.",
        .paper = "Karimireddy et al., ICML 2019, arXiv:1901.09847",
        .params = {{.name = "block",
                    .type = ParamType::integer,
                    .unit = "elements",
                    .default_value = "1024",
                    .min = 8.0,
                    .max = 65536.0,
                    .summary = "elements that share a scale; a multiple of 8"}},
        .positional = "block"});
