// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gradsieve/registry.hpp"

namespace gradsieve {

/// Passes the whole body through zstd; sends it as it was where that does not save a byte.
///
/// Paper:      Collet and Kucherawy, RFC 8878, 2021
/// Claims:     lossless
/// Payload:    16 + at most the bytes that went in; docs/wire_format.md#byte-stage-zstd-codec-24
/// Workspace:  zstd's own estimate for the level and size: 1 MB for short bodies at level 1 and up
///             to several 100 MB for long ones at level 19
/// Edge cases: an incompressible body is stored; the bytes depend on the version of zstd, what they
///             decode to does not
/// Cost:       zstd's
class ZstdCodec final : public ByteCodec {
 public:
  explicit ZstdCodec(Params const& params);

  [[nodiscard]] std::size_t bound(std::size_t num_bytes) const noexcept override;
  [[nodiscard]] std::size_t workspace_bytes(std::size_t num_bytes) const noexcept override;
  Status encode(ExecContext const& ctx, ConstBytes input, Body output) const noexcept override;
  Status decode(ExecContext const& ctx, ConstBytes input, Bytes output,
                std::size_t& num_bytes) const noexcept override;

 private:
  int level_;
};

}  // namespace gradsieve
