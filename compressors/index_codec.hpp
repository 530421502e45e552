// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "gradsieve/registry.hpp"

#include "kernels/index_forms.hpp"

namespace gradsieve {

/// Codes the set of chosen indices, as a bitmap or by Elias and Fano's method.
///
///   bitmap ⌈U/8⌉ bytes; Elias-Fano about k·(2 + log2(U/k)) bits, within 1/2 bit per index of the
///   entropy
///
/// Paper:      Elias, J. ACM 1974; Fano, MIT Project MAC memorandum 61, 1971
/// Payload:    docs/wire_format.md#index-forms
/// Workspace:  0
/// Edge cases: no indices: Elias-Fano has no bytes
/// Cost:       one pass over the indices; the bitmap's also over its ⌈U/8⌉ bytes
class IndexFormCodec final : public IndexCodec {
 public:
  /// Throws Error(not_implemented) for the reserved forms.
  explicit IndexFormCodec(Params const& params);

  [[nodiscard]] std::size_t bound(std::uint64_t universe,
                                  std::uint64_t num_indices) const noexcept override;
  [[nodiscard]] std::optional<std::uint32_t> fixed_form(
      std::uint64_t universe, std::uint64_t num_indices) const noexcept override;
  Status encode(ExecContext const& ctx, std::uint64_t universe,
                std::span<std::uint32_t const> indices, Body output,
                std::uint32_t& form) const noexcept override;

 private:
  std::optional<kernels::IndexForm> form_;  ///< empty: auto
};

}  // namespace gradsieve
