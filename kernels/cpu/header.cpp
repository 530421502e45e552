// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/header_fields.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cpu {

void write_header(ExecContext const& ctx, PayloadHeader const& header,
                  StepValue<std::uint64_t> body_bytes, std::span<std::byte> payload) noexcept {
  PayloadHeader const whole = completed(header, *ctx.words, body_bytes);
  std::memcpy(payload.data(), &whole, sizeof whole);
}

}  // namespace gradsieve::kernels::cpu
