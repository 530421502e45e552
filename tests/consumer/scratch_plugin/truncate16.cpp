// SPDX-License-Identifier: Apache-2.0
#include "truncate16.hpp"

#include <bit>

namespace gradsieve {

Claims Truncate16Compressor::claims() const noexcept {
  return {.fixed_rate = true, .elementwise = true};
}

RoundInfo Truncate16Compressor::round(int, TensorInfo const& piece) const noexcept {
  return {.capacity_bytes = 2 * static_cast<std::size_t>(piece.num_elements)};
}

Status Truncate16Compressor::do_encode(ExecContext const&, int, TensorInfo const&,
                                       std::span<float const> corrected, StateView,
                                       Body body) const noexcept {
  Bytes const bytes = body.resize(2 * corrected.size());
  if (bytes.size() != 2 * corrected.size()) {
    return {Code::capacity_exceeded, "truncate16: the body is too small"};
  }
  for (std::size_t i = 0; i < corrected.size(); ++i) {
    auto const bits = std::bit_cast<std::uint32_t>(corrected[i]);
    wire::store(bytes.data() + 2 * i, static_cast<std::uint16_t>(bits >> 16));
  }
  return {};
}

Status Truncate16Compressor::do_decode_add(ExecContext const&, int, TensorInfo const&,
                                           ConstBytes body, float weight, StateView,
                                           std::span<float> accumulator) const noexcept {
  if (body.size() != 2 * accumulator.size()) {
    return {Code::corrupt_payload, "truncate16: the body has the wrong length"};
  }
  for (std::size_t i = 0; i < accumulator.size(); ++i) {
    std::uint32_t const upper = wire::load<std::uint16_t>(body.data() + 2 * i);
    float const product = weight * std::bit_cast<float>(upper << 16);
    accumulator[i] += product;
  }
  return {};
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_COMPRESSOR(truncate16, Truncate16Compressor,
                              PluginInfo{.name = "truncate16",
                                         .kind = PluginKind::compressor,
                                         .payload_id = 160,
                                         .summary = "Sends the upper half of every float.",
                                         .paper = "-"});
